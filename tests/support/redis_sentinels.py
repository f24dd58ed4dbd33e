"""Three Redis servers, three sentinels: started by the scripts that we ship, killed by tests."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import redis
from guarded_redis import ROOT, GuardedRedis, password_of
from ports import free_port
from worker_process import wait_until

MASTER = "hq"
ROLES = ("replica", "sentinel")


class RedisSentinels:
    """A master, two replicas and three sentinels on 127.0.0.1, with the users of `users.acl`.

    Args:
        directory: where their data and configuration lie.
        binaries: first on PATH, for the redis-server to use.
        tls: directory with ca.pem, server.pem and server.key: everybody speaks TLS only.
        down_after_ms: silence of a server after which a sentinel finds it dead.
    """

    def __init__(
        self, directory: Path, binaries: str, *, tls: Path | None = None, down_after_ms: int = 1500
    ) -> None:
        self.directory = directory
        self._binaries = binaries
        self._tls = tls
        self._down_after_ms = down_after_ms
        self.servers: list[GuardedRedis] = []
        self.sentinel_ports = [free_port() for _ in range(3)]
        self._sentinels: list[subprocess.Popen[bytes]] = []
        self._stopped: set[int] = set()

    def start(self) -> RedisSentinels:
        for number in range(3):
            first = self.servers[0].port if self.servers else 0
            self._start_server(number, f"127.0.0.1 {first}" if first else "")
        wait_until("two replicas", lambda: self._info(0)["min_slaves_good_slaves"] == 2)
        for number in range(3):
            self._start_sentinel(number)
        wait_until("the sentinels know each other", self._is_complete)
        return self

    def _start_server(self, number: int, replica_of: str) -> None:
        directory = self.directory / f"redis-{number}"
        directory.mkdir(parents=True, exist_ok=True)
        environment = {f"REDIS_{role.upper()}_PASSWORD": password_of(role) for role in ROLES}
        environment |= {
            "REDIS_REPLICAOF": replica_of,
            "REDIS_CONFIG": str(directory / "redis.conf"),
        }
        options = ("--tls-replication", "yes") if self._tls else ()
        server = GuardedRedis(
            directory, self._binaries, options=options, tls=self._tls, environment=environment
        )
        self.servers.append(server.start())

    def _start_sentinel(self, number: int) -> None:
        directory = self.directory / f"sentinel-{number}"
        directory.mkdir(parents=True, exist_ok=True)
        port = str(self.sentinel_ports[number])
        command = ["sh", str(ROOT / "deploy/redis/sentinel.sh"), "--bind", "127.0.0.1"]
        command += ["--dir", str(directory), "--loglevel", "verbose"]
        if self._tls:
            command += ["--port", "0", "--tls-port", port, "--tls-replication", "yes"]
            command += self.servers[0].tls_files()
        else:
            command += ["--port", port]
        env = os.environ | {
            "PATH": f"{self._binaries}:{os.environ['PATH']}",
            "SENTINEL_CONFIG": str(directory / "sentinel.conf"),
            "SENTINEL_MASTER": MASTER,
            "SENTINEL_MONITOR": f"127.0.0.1 {self.servers[0].port}",
            "SENTINEL_DOWN_AFTER_MS": str(self._down_after_ms),
            "SENTINEL_FAILOVER_TIMEOUT_MS": "6000",
            "REDIS_SENTINEL_PASSWORD": password_of("sentinel"),
        }
        with (directory / "sentinel.log").open("ab") as log:
            self._sentinels.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))

    def url(self, role: str) -> str:
        """The HERMES_QUEUE_REDIS_URL of a process with this role; TLS files are settings."""
        nodes = ",".join(f"127.0.0.1:{port}" for port in self.sentinel_ports)
        scheme = "sentinel+tls" if self._tls else "sentinel"
        return f"{scheme}://{role}:{password_of(role)}@{nodes}/{MASTER}/0"

    def sentinel(self, number: int = 0) -> Any:
        tls: dict[str, Any] = {}
        if self._tls:
            tls = {"ssl": True, "ssl_ca_certs": str(self._tls / "ca.pem")}
        port = self.sentinel_ports[number]
        return redis.Redis("127.0.0.1", port, decode_responses=True, socket_timeout=5, **tls)

    def master(self) -> int:
        """Number of the server that the sentinels call master."""
        for number in range(3):
            try:
                with self.sentinel(number) as sentinel:
                    _, port = sentinel.sentinel_get_master_addr_by_name(MASTER)
                return [server.port for server in self.servers].index(int(port))
            except redis.RedisError:
                continue
        raise AssertionError("no sentinel answers")

    def wait_for_another_master(self, former: int, *, followed: bool = True) -> float:
        """Wait for one, and until the other replica follows it; returns the seconds it took."""
        began = time.monotonic()
        wait_until(
            f"another master than {former}", lambda: self._is_master_now(former), timeout_s=60
        )
        took_s = time.monotonic() - began
        if followed:
            wait_until("it is followed", lambda: self._info(self.master())["connected_slaves"])
        return took_s

    def _is_master_now(self, former: int) -> bool:
        now = self.master()
        return now != former and self._info(now)["role"] == "master"

    def kill(self, number: int) -> None:
        """SIGKILL."""
        process = self.servers[number].process
        assert process
        process.kill()
        process.wait()

    def start_again(self, number: int) -> None:
        """Start a server that was killed, with its data and configuration."""
        self.servers[number].start()

    def pause(self, number: int) -> None:
        """SIGSTOP: nobody reaches it, as behind a partition of the network."""
        self._signal(number, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._signal(number, signal.SIGCONT)

    def _signal(self, number: int, what: signal.Signals) -> None:
        process = self.servers[number].process
        assert process
        process.send_signal(what)

    def close(self) -> None:
        for process in self._sentinels:
            process.kill()
            process.wait()
        for server in self.servers:
            if server.process is not None and server.process.poll() is None:
                server.process.kill()
                server.process.wait()

    def _info(self, number: int) -> dict[str, Any]:
        with self.servers[number].client("monitor") as client:
            found: dict[str, Any] = client.info("replication")
        return found

    def _is_complete(self) -> bool:
        for number in range(3):
            try:
                with self.sentinel(number) as sentinel:
                    state = sentinel.sentinel_master(MASTER)
            except redis.RedisError:
                return False
            if state["num-slaves"] != 2 or state["num-other-sentinels"] != 2:
                return False
        return True
