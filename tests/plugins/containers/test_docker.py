"""The backend `docker` without an engine: facts, lists of changes, settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from hermes_plugins.containers.docker.changes import file_changes
from hermes_plugins.containers.docker.facts import check_limits, facts_of
from hermes_plugins.containers.images.client import find_engine
from hermes_plugins.containers.leftovers import Leftovers
from hermes_plugins.containers.settings import DockerSettings
from hermes_queue.errors import ConfigurationError, IsolationUnavailable, SandboxError


@pytest.mark.parametrize(
    ("info", "lacks"),
    [
        ({"MemoryLimit": True, "PidsLimit": True, "CpuCfsQuota": True}, ()),
        ({"MemoryLimit": False, "PidsLimit": True, "CpuCfsQuota": True}, ("memory",)),
        (
            {"SecurityOptions": ["name=rootless"], "CgroupVersion": "1", "MemoryLimit": True},
            ("memory", "processes", "cores"),
        ),
    ],
)
def test_an_engine_without_limits_is_refused_unless_that_is_accepted(info, lacks):
    version = {"Version": "4.3.1", "Components": [{"Name": "Podman Engine"}]}
    facts = facts_of(version, info, shares_files=True)
    assert (facts.name, facts.limits) == ("Podman 4.3.1", lacks)
    if not lacks:
        assert check_limits(facts, DockerSettings()) == ""
        return
    with pytest.raises(IsolationUnavailable, match="HERMES_QUEUE_DOCKER_LIMITS=none"):
        check_limits(facts, DockerSettings())
    assert "cannot limit" in check_limits(facts, DockerSettings(limits="none"))


def test_directories_that_only_hold_changes_and_files_of_the_engine_are_no_changes():
    found = [
        {"Path": "/etc", "Kind": 0},
        {"Path": "/etc/passwd", "Kind": 0},
        {"Path": "/etc/hosts", "Kind": 0},
        {"Path": "/app", "Kind": 1},
        {"Path": "/app/f", "Kind": 1},
        {"Path": "/srv", "Kind": 2},
        {"Path": "/srv/f", "Kind": 2},
    ]
    changes = {change.path: change.kind for change in file_changes(found, 100)}
    assert changes == {
        "/etc/passwd": "changed",
        "/app": "added",
        "/app/f": "added",
        "/srv": "deleted",
    }
    with pytest.raises(SandboxError, match="more than 6"):
        file_changes(found, 6)


@pytest.mark.parametrize("network", ["host", "container:other"])
def test_slots_never_have_the_network_of_the_host_or_of_others(network):
    with pytest.raises(ValidationError, match="network of others"):
        DockerSettings(network=network)


def test_a_host_without_an_engine_says_what_to_start(monkeypatch):
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr("hermes_plugins.containers.images.client.SOCKETS", ("/no/such.sock",))
    with pytest.raises(ConfigurationError, match=r"podman\.socket"):
        find_engine(None)
    with pytest.raises(ConfigurationError, match="HERMES_QUEUE_DOCKER_HOST"):
        find_engine("/run/docker.sock")
    assert find_engine("unix:///x") == "unix:///x"


def test_workers_that_start_at_the_same_time_know_each_others_containers(tmp_path, monkeypatch):
    first, second = Leftovers(tmp_path), Leftovers(tmp_path)
    write = Path.write_text

    def write_late(path: Path, text: str) -> int:
        monkeypatch.setattr(Path, "write_text", write)
        second.open()  # between the look of the first one and its writing
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", write_late)
    first.open()
    assert first.labels["registry"] == second.labels["registry"] == Leftovers(tmp_path)._registry()
    first.close()
    second.close()
    assert {path.name for path in (tmp_path / "containers").iterdir()} == {"id"}
