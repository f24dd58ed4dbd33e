"""Commands in containers without a container: streams, first processes, kills."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest

from hermes_plugins.images.containers.host import ContainerState, ExecFacts
from hermes_plugins.images.containers.process import ContainerCommand, run_command
from hermes_plugins.images.containers.scripts import WAIT
from hermes_plugins.images.modal import compare
from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.commands import deadline
from hermes_queue.sandbox.commands.marked import MAX_NOTE_BYTES, MarkedStream
from hermes_queue.sandbox.commands.shell import script

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
    assert "kill_marked()" in script("hermes_plugins.images.containers", "kill.sh")
    assert "kill_marked()" in script("hermes_queue.sandbox.modal", "slot.sh")


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

    facts = ExecFacts("test")

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
