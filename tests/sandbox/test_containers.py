"""The backend `docker` without an engine: streams, facts, lists of changes, settings."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hermes_queue.errors import ConfigurationError, IsolationUnavailable, SandboxError
from hermes_queue.images.engine.client import find_engine
from hermes_queue.sandbox.commands.marked import MAX_NOTE_BYTES, MarkedStream
from hermes_queue.sandbox.commands.shell import script
from hermes_queue.sandbox.docker.changes import file_changes
from hermes_queue.sandbox.docker.facts import check_limits, facts_of
from hermes_queue.settings import DockerSettings

MARK = b"\0secret\0"


def fed(data: bytes, size: int, *, has_note: bool = True) -> MarkedStream:
    """A stream that got `data` in pieces of `size` bytes."""
    stream = MarkedStream(1000, MARK, has_note=has_note)
    for start in range(0, len(data), size):
        stream.feed(data[start : start + size])
    return stream


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_stream_ends_at_its_mark_wherever_it_is_cut(size):
    stream = fed(b"a\0b\0secre" + MARK + b"137 1 20\0later", size)
    assert stream.kept.content() == b"a\0b\0secre"
    assert (stream.is_complete, stream.note) == (True, b"137 1 20")


def test_a_stream_without_its_mark_is_kept_whole():
    stream = fed(b"text\0sec", 3)
    stream.end()
    assert (stream.kept.content(), stream.is_complete) == (b"text\0sec", False)


def test_a_note_that_does_not_end_is_not_waited_for():
    stream = fed(b"x" + MARK + b"9" * (MAX_NOTE_BYTES + 1), 50)
    assert (stream.is_complete, stream.note) == (True, b"")


def test_scripts_that_are_sent_contain_what_they_call():
    assert "kill_marked()" in script("hermes_queue.sandbox.containers", "kill.sh")
    assert "kill_marked()" in script("hermes_queue.sandbox.modal", "slot.sh")


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
    monkeypatch.setattr("hermes_queue.images.engine.client.SOCKETS", ("/no/such.sock",))
    with pytest.raises(ConfigurationError, match=r"podman\.socket"):
        find_engine(None)
    with pytest.raises(ConfigurationError, match="HERMES_QUEUE_DOCKER_HOST"):
        find_engine("/run/docker.sock")
    assert find_engine("unix:///x") == "unix:///x"
