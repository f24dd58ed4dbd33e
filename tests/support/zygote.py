"""Starts workers by forking a process that has already imported Celery and our packages.

A worker that starts from nothing spends two seconds of processor time on imports, and the tests
start more than a hundred. A fork is a full process nonetheless: it has a pid, receives signals,
dies of SIGKILL, and reads its settings from its own environment. Tests of the command
`celery -A hermes_queue worker` itself start that command.

All processes of one test run share the process that forks: the first that needs it starts it, and
it ends when the last that has used it is gone.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import hashlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

MAX_REQUEST_BYTES = 1 << 20
OURS = (
    # With the REPL and the plugins of other packages, which Celery's command loads.
    "celery.bin.celery",
    # What a worker loads by name, as it starts.
    "billiard.pool",
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.app.routes",
    "celery.apps.worker",
    "celery.loaders.app",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.consumer.delayed_delivery",
    "celery.worker.strategy",
    "importlib.resources.readers",
    "hermes_queue.cli",
    "hermes_queue.sandbox.local.backend",
    "openai",
    "producers.base",
    "producers.run.single",
    "workers.lifecycle",
    "workers.trajectory",
)
"""Modules that our workers and commands import."""


class ForkedProcess:
    """The interface of `subprocess.Popen`, for a child of the zygote."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self._zygote = zygote
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self.returncode is None:
            self.returncode = self._zygote.status(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; returns the exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0.0)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkedCommand(ForkedProcess):
    """A fork whose output is kept until `communicate` is called, as it has to be."""

    def __init__(self, zygote: Zygote, pid: int, *streams: IO[bytes]) -> None:
        super().__init__(zygote, pid)
        self._streams = streams
        self._texts: list[str] = []

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; returns standard output and standard error.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        self.wait(timeout)
        for stream in self._streams if not self._texts else ():
            with stream:
                stream.seek(0)
                self._texts.append(stream.read().decode(errors="replace"))
        return self._texts[0], self._texts[1]


def start_forked(
    module: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    imported: Sequence[str] = (),
) -> ForkedCommand:
    """Start `python -m module *arguments` in a fork that has `imported` (none = `OURS`)."""
    settings = os.environ if environment is None else environment
    out, error = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    words = list(map(str, arguments))
    parent = zygote(*imported)
    process = parent.start(module, words, settings, out, directory, error)
    return ForkedCommand(parent, process.pid, out, error)


def run_forked(
    module: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    timeout_s: float = 120.0,
    imported: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """`python -m module *arguments` in a fork, to its end, with what it prints.

    `imported` names modules that the fork has from the start (none = `OURS`).

    Raises:
        subprocess.TimeoutExpired: it does not end; it has been killed.
    """
    process = start_forked(
        module, *arguments, environment=environment, directory=directory, imported=imported
    )
    try:
        code = process.wait(timeout_s)
    finally:
        process.kill()
        out, error = process.communicate()
    return subprocess.CompletedProcess([module, *map(str, arguments)], code, out, error)


class Zygote:
    """The process that forks, as seen by a test process. It has imported `modules`."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._ended: dict[int, int] = {}
        self._rest = b""
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid()}")
        what = "\0".join([run, f"{os.getuid()}", sys.executable, __file__, *modules])
        digest = hashlib.sha256(what.encode()).hexdigest()[:16]
        address = Path(tempfile.gettempdir(), f"hq-zygote-{digest}")
        self._socket = socket.socket(socket.AF_UNIX)
        atexit.register(self._socket.close)
        with _turn_of(address):
            try:
                self._socket.connect(str(address))
            except (FileNotFoundError, ConnectionRefusedError):
                _start(address, modules)
                self._socket.connect(str(address))

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: IO[bytes],
        directory: Path | None = None,
        error: IO[bytes] | None = None,
        typed: IO[bytes] | None = None,
    ) -> ForkedProcess:
        """Run `python -m module *arguments` in a fork.

        Args:
            module: what to run.
            arguments: its arguments.
            environment: all of its environment.
            log: takes its output.
            directory: where it runs; None = here.
            error: takes its standard error; None = `log` does.
            typed: its standard input, which becomes its terminal if it is one; None = empty.
        """
        request = {
            "argv": [module, *arguments],
            "environment": dict(environment),
            "cwd": str(directory or Path.cwd()),
        }
        with self._lock:
            streams = [stream.fileno() for stream in (log, error or log, typed) if stream]
            socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
            while True:
                for message in self._messages(None):
                    if "pid" in message:
                        return ForkedProcess(self, message["pid"])

    def status(self, pid: int) -> int | None:
        """The exit code of a fork, negative after a signal; None while it runs."""
        with self._lock:
            self._messages(0.0)
            return self._ended.get(pid)

    def _messages(self, timeout_s: float | None) -> list[dict[str, Any]]:
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return []
        if not (data := self._socket.recv(65536)):
            raise RuntimeError("the zygote has ended")
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            if "ended" in message:
                self._ended[message["ended"]] = message["code"]
        return messages


_zygotes: dict[tuple[str, ...], Zygote] = {}


def zygote(*modules: str) -> Zygote:
    """The one of this test process that has these modules (none = `OURS`)."""
    wanted = modules or OURS
    if wanted not in _zygotes:
        _zygotes[wanted] = Zygote(wanted)
    return _zygotes[wanted]


@contextmanager
def _turn_of(address: Path) -> Iterator[None]:
    """Nobody else connects, starts a server or ends it meanwhile."""
    with address.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _start(address: Path, modules: Sequence[str]) -> None:
    """Start the process; whoever connects from now on waits until it has imported `modules`."""
    address.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen(64)
        listener.set_inheritable(True)
        command = [sys.executable, __file__, f"{listener.fileno()}", *modules]
        # Not as a `Popen`, which complains at the end of this process, which the other may outlive.
        os.posix_spawn(sys.executable, command, os.environ)


class _Server:
    """Forks on request, for each that is connected."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._links: set[socket.socket] = set()
        self._parents: dict[int, socket.socket] = {}
        self._wake, self._ring = os.pipe()

    def serve(self) -> dict[str, Any] | None:
        """Fork at each request; returns it in the child, None when all who asked are gone."""
        os.set_blocking(self._ring, False)
        signal.set_wakeup_fd(self._ring, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([self._listener, self._wake, *self._links], [], [])
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._report()
            if self._listener in ready:
                self._links.add(self._listener.accept()[0])
            for link in self._links.intersection(ready):
                data, descriptors, _, _ = socket.recv_fds(link, MAX_REQUEST_BYTES, 3)
                if data:
                    if not self._fork(link, descriptors):
                        return {**json.loads(data), "streams": descriptors}
                elif self._is_last(link):
                    return None

    def _fork(self, link: socket.socket, descriptors: list[int]) -> bool:
        """Fork; True in the zygote, False in the child."""
        if pid := os.fork():
            for descriptor in descriptors:
                os.close(descriptor)
            self._parents[pid] = link
            self._send(link, pid=pid)
            return True
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (self._wake, self._ring):
            os.close(descriptor)
        for each in (self._listener, *self._links):
            each.close()
        return False

    def _is_last(self, link: socket.socket) -> bool:
        """Forget one that is gone; whether nobody is left or about to come."""
        self._links.remove(link)
        link.close()
        if self._links:
            return False
        address = Path(self._listener.getsockname())
        with _turn_of(address):
            if select.select([self._listener], [], [], 0)[0]:
                return False
            address.unlink(missing_ok=True)
            address.with_suffix(".lock").unlink(missing_ok=True)
        return True

    def _report(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            code = os.waitstatus_to_exitcode(status)
            self._send(self._parents.pop(pid), ended=pid, code=code)

    def _send(self, link: socket.socket, **message: float) -> None:
        with suppress(OSError):  # it may be gone
            link.sendall(json.dumps(message).encode() + b"\n")


def _become(request: dict[str, Any]) -> None:
    """Be what the request asks for, as far as a new process would be."""
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, descriptor in zip((1, 2, 0), request["streams"], strict=False):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if len(request["streams"]) == 3:  # Python's own objects believe in what was there before
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
    if os.isatty(0):
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    time.tzset()
    sys.path[:0] = [request["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
    sys.argv = list(request["argv"])
    if not hasattr(sys.modules.get(sys.argv[0]), "__path__"):
        sys.modules.pop(sys.argv[0], None)  # it is to be run, as `__main__`


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    if isolation := sys.modules.get("hermes_queue.sandbox.host.isolation"):
        isolation.host_python()  # walks through /usr, once per process
    if connection := sys.modules.get("hermes_queue.agent.endpoint.connection"):
        connection.trusted_authorities()  # reads hundreds of certificates, once per process


def _run(module: str) -> None:
    """Run a module as `__main__` and end, without the interpreter's own end.

    That frees every object, which in a fork means copying all that the zygote has imported: more
    work than many a command has.
    """
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except ValueError:  # it is closed
            pass
        except OSError:  # nobody reads it
            code = 120
    os._exit(code & 0xFF)


if __name__ == "__main__":
    sys.path[:1] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
    _import(sys.argv[2:])
    gc.freeze()
    wanted = _Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    if wanted is not None:
        _become(wanted)
        _run(sys.argv[0])
