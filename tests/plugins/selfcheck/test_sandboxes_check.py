"""`hermes-queue sandboxes check` on backends that fail."""

from __future__ import annotations

import inspect
import re
import sys
import types

import pytest
from click.testing import CliRunner

from hermes_queue.cli import cli
from hermes_queue.errors import ConfigurationError
from hermes_queue.sandbox.base import Capabilities, ExecutionResult, SandboxBackend, Slot
from hermes_queue.sandbox.capacity import Capacity


class Sloppy(SandboxBackend):
    """Answers every command with success, and never leases fewer slots than it began with."""

    capabilities = Capabilities(isolation=False)

    def __init__(self, *, slots=None, labels=None, fleet=None):
        self.places = Capacity(slots)

    @property
    def free_slots(self):
        return self.places.free

    async def acquire(self, trajectory_id, spec):
        await self.places.acquire()
        return Slot("slot", trajectory_id, "sandbox", "/", spec)

    async def release(self, slot):
        self.places.release()

    async def execute_batch(self, requests):
        return [ExecutionResult(0, b"alive\n", b"", 0.0) for _ in requests]


class Broken(Sloppy):
    async def start(self):
        raise RuntimeError("no credentials")


class Unmade(Sloppy):
    def __init__(self, *, slots=None, labels=None, fleet=None):
        self.token = "token: " + labels


@pytest.fixture
def check(monkeypatch):
    module = types.ModuleType("their_backend")
    module.Sloppy, module.Broken, module.Unmade = Sloppy, Broken, Unmade
    monkeypatch.setitem(sys.modules, "their_backend", module)

    def run(name, *words):
        return CliRunner().invoke(cli, ["sandboxes", "check", f"their_backend:{name}", *words])

    return run


def test_a_failing_check_is_printed_with_finding_and_remedy(check):
    done = check("Sloppy", "--only", "non_zero_exit")
    assert done.exit_code == 1
    assert re.search(r"failed  \d+\.\d s  a non zero exit is a result not an error", done.output)
    assert "found (0, b'alive\\n', b''), expected (3, b'out\\n', b'err\\n')" in done.output
    assert "-> Return the exit code and both streams of a command that fails." in done.output


def test_a_backend_that_cannot_be_resized_while_slots_are_leased_fails(check, monkeypatch):
    monkeypatch.setattr(Sloppy, "resize", lambda self, slots: None, raising=False)
    done = check("Sloppy", "--only", "resize", "--timeout", "1")
    assert done.exit_code == 1
    assert "it took longer than 1 s" in done.output
    monkeypatch.setattr(Sloppy, "resize", lambda self, slots: self.places.resize(slots))
    assert check("Sloppy", "--only", "resize").exit_code == 0


def test_what_a_backend_raises_fails_the_check_and_not_the_command(check):
    done = check("Broken", "--only", "cwd")
    assert (done.exit_code, "RuntimeError: no credentials" in done.output) == (1, True)


def test_what_cannot_be_checked_is_skipped_with_the_reason(check):
    done = check("Sloppy", "--only", "memory")
    assert (done.exit_code, "skipped 1: the memory limit of a slot is unknown" in done.output) == (
        0,
        True,
    )


def test_a_backend_that_cannot_be_made_is_reported_once_with_file_and_line(check):
    done = check("Unmade")
    line = inspect.getsourcelines(Unmade)[1] + 2
    assert done.exit_code == ConfigurationError.exit_code != 0
    assert done.output.count("cannot be made") == 1
    assert f'TypeError: can only concatenate str (not "NoneType") to str ({__file__}:{line})' in (
        done.output
    )


def test_a_check_that_there_is_not_is_refused_with_those_there_are(check):
    done = check("Sloppy", "--only", "teleport")
    assert (done.exit_code, "\n  a_release_leaves_nothing\n" in done.output) == (2, True)


@pytest.mark.parametrize("only", ["non-zero-exit", "non zero exit"])
def test_a_check_is_named_with_hyphens_and_blanks_too(check, only):
    assert "1 failed, 0 skipped" in check("Sloppy", "--only", only).output
