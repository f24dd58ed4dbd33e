"""Starts workers by forking a process that has imported Celery and us already.

A worker that starts from nothing spends two seconds of processor time on imports; the tests start
more than a hundred. What is forked is a process of its own all the same: it has a pid, gets
signals, dies of SIGKILL, and reads its settings from the environment it is given. Tests of the
command `celery -A hermes_queue worker` itself start that command.

Other processes are forked likewise, from a zygote that has imported what they need.
"""

from __future__ import annotations

import gc
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
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

MAX_REQUEST_BYTES = 1 << 20
OF_A_WORKER = ("workers.lifecycle", "workers.trajectory")
"""What a zygote imports unless it is given other modules."""


class ForkedProcess:
    """What `subprocess.Popen` offers, for a child of the zygote."""

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


def run_forked(
    module: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    timeout_s: float = 120.0,
    imported: Sequence[str] = OF_A_WORKER,
) -> subprocess.CompletedProcess[str]:
    """`python -m module *arguments` in a fork, to its end, with what it prints.

    `imported` names modules that the fork has from the start.

    Raises:
        subprocess.TimeoutExpired: it does not end; it has been killed.
    """
    words = list(map(str, arguments))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        process = zygote(*imported).start(
            module, words, os.environ if environment is None else environment, out, directory, error
        )
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        texts = []
        for stream in (out, error):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return subprocess.CompletedProcess([module, *words], code, *texts)


class Zygote:
    """The process that forks, with `imported` imported. It ends with the socket to it."""

    def __init__(self, imported: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._ended: dict[int, int] = {}
        self._rest = b""
        self.cpu_s = 0.0
        """What its forks have used, as far as they have ended."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *imported],
                pass_fds=[theirs.fileno()],
            )

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: IO[bytes],
        directory: Path | None = None,
        error: IO[bytes] | None = None,
    ) -> ForkedProcess:
        """Run `python -m module *arguments` in a fork.

        Args:
            module: what to run.
            arguments: its arguments.
            environment: all of its environment.
            log: takes its output.
            directory: where it runs; None = here.
            error: takes its standard error; None = `log` does.
        """
        request = {
            "argv": [module, *arguments],
            "environment": dict(environment),
            "cwd": str(directory or Path.cwd()),
        }
        with self._lock:
            streams = [log.fileno(), (error or log).fileno()]
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
                self.cpu_s += message["cpu_s"]
        return messages


_zygotes: dict[tuple[str, ...], Zygote] = {}


def zygote(*imported: str) -> Zygote:
    """The one of this test process that has imported these, started on first use."""
    modules = imported or OF_A_WORKER
    if modules not in _zygotes:
        _zygotes[modules] = Zygote(modules)
    return _zygotes[modules]


def cpu_of_forks_s() -> float:
    """Processor time of all forks of this process that have ended."""
    return sum(each.cpu_s for each in _zygotes.values())


def _serve(link: socket.socket) -> dict[str, Any] | None:
    """Fork at each request; returns the request in the child, None when there are no more."""
    wake, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([link, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _report(link)
        if link not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(link, MAX_REQUEST_BYTES, 2)
        if not data:
            return None
        if pid := os.fork():
            for descriptor in descriptors:
                os.close(descriptor)
            link.sendall(json.dumps({"pid": pid}).encode() + b"\n")
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (wake, ring):
            os.close(descriptor)
        return {**json.loads(data), "streams": descriptors}


def _report(link: socket.socket) -> None:
    while True:
        try:
            pid, status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        code = os.waitstatus_to_exitcode(status)
        message = {"ended": pid, "code": code, "cpu_s": used.ru_utime + used.ru_stime}
        link.sendall(json.dumps(message).encode() + b"\n")


def _become(request: dict[str, Any]) -> None:
    """Be what the request asks for, as far as a new process would be."""
    for number, descriptor in zip((1, 2), request["streams"], strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    time.tzset()
    sys.path[:0] = [request["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
    sys.argv = list(request["argv"])
    sys.modules.pop(sys.argv[0], None)  # it is to be run, as `__main__`


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()
    channel = socket.socket(fileno=int(sys.argv[1]))
    wanted = _serve(channel)
    channel.close()
    if wanted is not None:
        _become(wanted)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
