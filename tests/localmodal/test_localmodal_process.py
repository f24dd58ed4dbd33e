"""The server as a process of its own, as `make localmodal` starts it."""

from __future__ import annotations

import os
import select
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import modal
import pytest
from modal_server import forget_modal_client
from zygote import run_forked, zygote

from hermes_queue.sandbox.host.interpreter import prepare

NAP = f"sleep {4_000_000 + os.getpid()}"
"""No other test process has this one, whose naps would be taken for ours."""
IMPORTED = ("localmodal.server",)


class Process:
    """One server process and what it printed."""

    def __init__(self, root: Path, *flags: str) -> None:
        reader, writer = os.pipe()
        with os.fdopen(writer, "wb") as printed, (root / "log").open("ab") as log:
            self.process = zygote(*IMPORTED).start(
                "localmodal.__main__",
                ["--root", str(root), *flags],
                os.environ,
                printed,
                error=log,
            )
        with os.fdopen(reader) as lines:
            words = [next(lines).removeprefix("export ").strip().partition("=") for _ in range(3)]
        self.environment = {name: value for name, _, value in words}

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """The interpreter as a server copies it to its root."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-queue-test-"))
    yield prepare(None, directory).home
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def root(python: Path) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="hermes-queue-test-"))
    directory.chmod(0o755)
    place = directory / "python" / python.name
    shutil.copytree(python, place, symlinks=True, copy_function=os.link)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def serve(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(*flags: str) -> Process:
        process = Process(root, *flags)
        started.append(process)
        for name, value in process.environment.items():
            monkeypatch.setenv(name, value)
        forget_modal_client()
        return process

    yield start
    forget_modal_client()
    for process in started:
        process.end(signal.SIGKILL)


def sandbox_processes(root: Path) -> list[int]:
    """Host processes that have the server's directory in their arguments or a nap in them."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            arguments = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if f"{root}/" in arguments or arguments.strip() == NAP:
            found.append(int(name))
    return found


def begin_nap() -> modal.Sandbox:
    app = modal.App.lookup("process", create_if_missing=True)
    sandbox = modal.Sandbox.create(app=app, image=modal.Image.debian_slim())
    sandbox.exec("setsid", "-f", *NAP.split()).wait()
    return sandbox


def wait_until_gone(pids: list[int]) -> None:
    """A pidfd is readable once its process has ended."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([descriptor], [], [], 60)[0], pid
        os.close(descriptor)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_sandboxes_and_files(serve, root, number):
    process = serve()
    begin_nap()
    pids = sandbox_processes(root)
    assert pids
    assert process.end(number) == 0
    wait_until_gone(pids)
    assert list((root / "slots").iterdir()) == []


def test_after_its_sigkill_nothing_runs_and_the_next_start_removes_its_files(serve, root):
    process = serve()
    begin_nap()
    pids = sandbox_processes(root)
    assert process.end(signal.SIGKILL) == -signal.SIGKILL
    wait_until_gone(pids)
    [left] = (root / "slots").iterdir()
    serve()
    assert not left.exists()


def test_two_servers_share_a_root_without_harm(serve, root):
    first = serve()
    sandbox = begin_nap()
    second = serve()
    assert len(list((root / "slots").iterdir())) == 2
    second.end(signal.SIGTERM)
    assert sandbox.exec("true").wait() == 0
    first.end(signal.SIGTERM)


def test_its_tokens_are_those_of_its_flags(serve, monkeypatch):
    process = serve("--token-id", "ak-mine", "--token-secret", "as-mine")
    assert process.environment["MODAL_TOKEN_ID"] == "ak-mine"
    assert process.environment["MODAL_TOKEN_SECRET"] == "as-mine"
    begin_nap()
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-local")
    forget_modal_client()
    with pytest.raises(modal.exception.AuthError):
        modal.App.lookup("process")


def test_no_sandbox_has_network_when_it_says_so(serve):
    serve("--no-network")
    sandbox = begin_nap()
    lines = sandbox.exec("cat", "/proc/net/dev").stdout.read().splitlines()
    assert [line.split(":")[0].strip() for line in lines[2:]] == ["lo"]


def test_faults_are_injected_from_another_process(serve):
    from localmodal.faults.service import RemoteFaults

    from hermes_queue.errors import ConfigurationError

    process = serve()
    faults = RemoteFaults(process.environment)
    sandbox = begin_nap()
    faults.inject("SandboxTagsGetV2", status="NOT_FOUND", count=2)
    faults.inject("SandboxTagsGet", status="NOT_FOUND", count=2)
    with pytest.raises(modal.exception.NotFoundError):
        sandbox.get_tags()
    faults.clear()
    assert sandbox.get_tags() == {}
    assert faults.calls()["TaskExecStart"] == 1
    faults.adjust(kill_slack_s=0.1)
    with pytest.raises(ConfigurationError, match="unknown"):
        faults.adjust(no_such_thing=1)
    faults.lose_worker(sandbox.object_id)
    wrong = RemoteFaults({**process.environment, "MODAL_TOKEN_SECRET": "wrong"})
    with pytest.raises(ConfigurationError, match="wrong"):
        wrong.calls()


def test_a_taken_port_is_one_line_of_error(serve, root):
    port = serve().environment["MODAL_SERVER_URL"].rpartition(":")[2]
    flags = ("--root", root, "--port", port)
    done = run_forked("localmodal.__main__", *flags, imported=IMPORTED)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot listen")
