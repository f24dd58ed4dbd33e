"""A redis-server with the users that we ship, started by the script that we ship."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import redis
from ports import free_port
from redis_server import wait_until_it_answers

ROOT = Path(__file__).parents[2]
ROLES = ("producer", "worker", "consumer", "monitor", "viewer", "flower", "operator")


def password_of(role: str) -> str:
    return f"{role}-0123456789abcdef"


class GuardedRedis:
    """`deploy/redis/start.sh` on a free port of 127.0.0.1.

    Args:
        directory: where its data lies.
        binaries: first on PATH, for the redis-server to use.
        options: more arguments of redis-server.
        tls: path of a directory with ca.pem, server.pem and server.key: only TLS is spoken.
        environment: more of the script's variables.
    """

    def __init__(
        self,
        directory: Path,
        binaries: str,
        *,
        options: tuple[str, ...] = (),
        tls: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.port = free_port()
        self._binaries = binaries
        self._tls = tls
        self._options = options
        self._environment = environment or {}
        self.process: subprocess.Popen[bytes] | None = None

    def url(self, role: str) -> str:
        """The HERMES_QUEUE_REDIS_URL of a process with this role."""
        if self._tls:
            ca = self._tls / "ca.pem"
            where = f"127.0.0.1:{self.port}/0?ssl_ca_certs={ca}"
            return f"rediss://{role}:{password_of(role)}@{where}"
        return f"redis://{role}:{password_of(role)}@127.0.0.1:{self.port}/0"

    def client(self, role: str) -> redis.Redis:
        client: redis.Redis = redis.Redis.from_url(self.url(role), decode_responses=True)
        return client

    def start(self) -> GuardedRedis:
        self.directory.mkdir(parents=True, exist_ok=True)
        command: list[str] = ["sh", str(ROOT / "deploy/redis/start.sh"), "--bind", "127.0.0.1"]
        command += ["--dir", str(self.directory), *self._listen(), *self._options]
        passwords = {f"REDIS_{role.upper()}_PASSWORD": password_of(role) for role in ROLES}
        path = f"{self._binaries}:{os.environ['PATH']}"
        env = {**os.environ, **passwords, **self._environment}
        env |= {"PATH": path, "TMPDIR": str(self.directory)}
        with (self.directory / "redis.log").open("wb") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        self._wait()
        return self

    def _listen(self) -> list[str]:
        if self._tls is None:
            return ["--port", str(self.port)]
        return ["--port", "0", "--tls-port", str(self.port), *self.tls_files()]

    def tls_files(self) -> list[str]:
        """redis-server's options of TLS."""
        assert self._tls
        tls = {"cert-file": "server.pem", "key-file": "server.key", "ca-cert-file": "ca.pem"}
        files = [part for k, v in tls.items() for part in (f"--tls-{k}", str(self._tls / v))]
        return ["--tls-auth-clients", "no", *files]

    def _wait(self) -> None:
        assert self.process is not None
        with self.client("monitor") as client:
            wait_until_it_answers(client, self.process, self.directory / "redis.log")

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
