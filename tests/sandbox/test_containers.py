"""The backend `docker` without an engine: streams, facts, lists of changes, settings."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import ValidationError

from hermes_queue.errors import ConfigurationError, IsolationUnavailable, SandboxError
from hermes_queue.images.engine.client import find_engine
from hermes_queue.sandbox.commands import deadline
from hermes_queue.sandbox.commands.marked import MAX_NOTE_BYTES, MarkedStream
from hermes_queue.sandbox.commands.shell import script
from hermes_queue.sandbox.containers.host import ContainerState, HostFacts
from hermes_queue.sandbox.containers.leftovers import Leftovers
from hermes_queue.sandbox.containers.process import ContainerCommand, run_command
from hermes_queue.sandbox.containers.scripts import WAIT
from hermes_queue.sandbox.docker.changes import file_changes
from hermes_queue.sandbox.docker.facts import check_limits, facts_of
from hermes_queue.sandbox.modal.rooted import compare
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


def test_a_first_process_outlives_a_slot_that_leaves_it_no_process_to_fork():
    def use_up() -> None:
        if os.geteuid() == 0:
            os.setuid(54_321)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))

    rounds = WAIT.replace("while :;", "for _ in 1 2;")
    words = ["/bin/sh", "-c", f"{rounds}; echo alive"]
    first = subprocess.run(words, preexec_fn=use_up, capture_output=True, check=False)
    assert (first.stdout, first.stderr) == (b"alive\n", b"")


@pytest.mark.parametrize(("open_files", "most"), [(30, 1000), (1000, 20)])
def test_a_tree_that_cannot_be_compared_is_too_large_and_no_failure(tmp_path, open_files, most):
    """More folders in each other than can be open, and more names than are wanted."""
    for name in ("base", "deep/wide"):
        (tmp_path / name).mkdir(parents=True)
    for number in range(21):
        (tmp_path / "deep" / "wide" / str(number)).touch()
    (tmp_path / "deep" / "/".join("d" * 40)).mkdir(parents=True)
    words = [sys.executable, "-I", "-S", compare.__file__, tmp_path / "base", tmp_path / "deep"]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

    done = subprocess.run([*words, str(most)], preexec_fn=limit, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (compare.TOO_MANY, b"")


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


@pytest.mark.parametrize(
    ("state", "was_killed"),
    [
        (ContainerState(running=False, exit_code=137), True),
        (ContainerState(running=False, exit_code=137, out_of_memory=True), False),
        (ContainerState(running=False, exit_code=139), False),
        (ContainerState(running=False, exit_code=0), False),
        (ContainerState(running=True), False),
    ],
)
def test_only_sigkill_without_a_limit_of_memory_comes_from_outside(state, was_killed):
    assert state.was_killed is was_killed


async def test_a_kill_that_the_host_does_not_take_is_tried_again(monkeypatch):
    monkeypatch.setattr(deadline, "KILL_PAUSE_S", 0)
    ended = asyncio.get_running_loop().create_future()
    tries = []

    async def kill():
        tries.append(1)
        if len(tries) < 3:
            raise SandboxError("not now")
        ended.set_result(None)

    await deadline.kill_until_ended(ended, kill)
    never = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(deadline, "KILL_ROUNDS", 2)
    tries.clear()
    with pytest.raises(SandboxError, match="could not be killed: not now"):
        await deadline.kill_until_ended(never, kill)


class EndsByItself:
    """A host whose command ends when somebody first tries to kill it."""

    facts = HostFacts("test")

    def __init__(self) -> None:
        self.ended, self.kills = asyncio.Event(), 0

    @asynccontextmanager
    async def exec(self, container, argv, *, user, env, stdin=False):
        yield self

    async def read(self):
        await self.ended.wait()

    async def exit_code(self):
        return 254

    async def kill(self):
        self.ended.set()
        self.kills += 1
        if self.kills == 1:
            raise SandboxError("no process is left for the one that kills")


async def test_a_command_that_ends_while_its_kill_fails_is_killed_with_its_tree(
    monkeypatch,
):
    monkeypatch.setattr(deadline, "KILL_PAUSE_S", 0)
    host = EndsByItself()
    ended = await run_command(host, "c", ContainerCommand(("x",), 0), kill=host.kill)
    assert (ended.result.timed_out, host.kills) == (True, 2)
