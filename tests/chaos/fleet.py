"""The processes of a chaos run: Redis, workers, producer, consumers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import redis

import hermes_queue
from hermes_queue.broker import child_process
from hermes_queue.broker.embedded import find_redis_server
from hermes_queue.ledger import Ledger
from hermes_queue.settings import PREFIX
from tests.chaos.agent import SPENT
from tests.chaos.env import JOURNAL

CONSUMERS = {"fast": 0.0, "slow": 0.05}
"""Seconds that each consumer group takes before it acknowledges."""
WITNESS = "witness"
"""A consumer group that reads nothing, so that nothing is trimmed before the verdict."""


@dataclass
class Process:
    """A program that is started, killed and started again."""

    name: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    lives: int = 0

    @property
    def pid(self) -> int:
        """Pid of the current life; 0 before the first."""
        return self.process.pid if self.process else 0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    @property
    def failed(self) -> bool:
        """Whether the process has ended with an error."""
        return self.process is not None and self.process.poll() not in (None, 0)

    def start(self) -> None:
        """Begin another life."""
        self.lives += 1
        log = self.log.with_suffix(f".{self.lives}.log")
        self.process = child_process.start(self.command, self.environment, log=log)

    def send(self, number: signal.Signals) -> None:
        """Send a signal; SIGSTOP freezes the process until SIGCONT."""
        if self.process:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.process:
            self.process.kill()
            self.process.wait()

    def stop(self, patience_s: float = 40.0) -> None:
        """Send SIGTERM, and SIGKILL after `patience_s`."""
        child_process.end(self.process, patience_s)


@dataclass
class DoomedFleet:
    """Everything that a run starts, below one directory."""

    directory: Path
    workers_count: int
    concurrency: int
    lease_s: float = 4.0
    url: str = ""
    """The user's own Redis, which is never killed. Empty: start a private one."""
    graders_count: int = 0
    """Processes that only grade; with any, the workers hand over what their agents have done."""
    prefetch: int = 0
    """Trajectories that each worker sets up ahead."""
    redis: Process | None = None
    workers: list[Process] = field(default_factory=list)
    graders: list[Process] = field(default_factory=list)
    consumers: list[Process] = field(default_factory=list)
    producer: Process | None = None
    prefix: str = "hq:"

    def __post_init__(self) -> None:
        self.journal = self.directory / "journal"
        """File of the verifiers' measurements."""
        self.spent = self.directory / "spent"
        """File of the tokens of the agents' replies."""
        self.cache = self.directory / "cache"
        """Slots and spool of the workers."""
        if self.url:
            self.prefix = f"chaos-{os.getpid()}:"
        else:
            self.url = f"unix://{self.directory / 'redis.sock'}?db=0"
            data = self.directory / "redis"
            data.mkdir()
            command = [find_redis_server(), "--port", "0", "--save", "", "--appendonly", "yes"]
            command += ["--appendfsync", "everysec", "--maxmemory-policy", "noeviction"]
            command += ["--unixsocket", str(self.directory / "redis.sock"), "--dir", str(data)]
            self.redis = self._process("redis", command)
        for number in range(self.workers_count):
            stages = "agent" if self.graders_count else "all"
            self.workers.append(self._worker(f"worker-{number}", f"chaos{number}", stages))
        for number in range(self.graders_count):
            self.graders.append(self._worker(f"grader-{number}", f"grader{number}", "verify"))
        for name, pause_s in CONSUMERS.items():
            command = self._python("tests.chaos.consumer", "--group", name)
            command += ["--file", str(self.consumed(name)), "--pause", str(pause_s)]
            self.consumers.append(self._process(f"consumer-{name}", command))

    @property
    def everybody(self) -> list[Process]:
        """All that lease trajectories: workers and graders."""
        return [*self.workers, *self.graders]

    def consumed(self, group: str) -> Path:
        """File of the groups that a consumer group received."""
        return self.directory / f"consumed-{group}"

    def copies(self) -> list[Path]:
        """Files of copies of slots."""
        return sorted((self.cache / "snapshots").glob("*"))

    def produce(self, *, groups: int, rate: float, seed: int) -> None:
        """Start the producer."""
        command = self._python("tests.chaos.producer", "--groups", str(groups))
        command += ["--rate", str(rate), "--began", str(time.time()), "--seed", str(seed)]
        self.producer = self._process("producer", command)
        self.producer.start()

    def start(self) -> None:
        """Start everything but the producer."""
        if self.redis:
            self.redis.start()
        self.wait_for_redis()
        ledger = self.connect()
        ledger.client.xgroup_create(ledger.key("results"), WITNESS, id="0", mkstream=True)
        for process in (*self.everybody, *self.consumers):
            process.start()

    def processes(self) -> Iterator[tuple[int, str]]:
        """Yield pid and command of every process of this run.

        Its arguments, environment or mounts name our directory; of commands in slots, only the
        mounts do.
        """
        mark = self.directory.name
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command, environment, mounts = (
                    (path / name).read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    for name in ("cmdline", "environ", "mountinfo")
                )
            except OSError:  # it has just ended
                continue
            if mark in command + environment + mounts:
                yield int(path.name), command

    def connect(self) -> Ledger:
        """Return a ledger on this run's Redis."""
        return Ledger(redis.Redis.from_url(self.url), prefix=self.prefix, url=self.url)

    def wait_for_redis(self, patience_s: float = 30.0) -> None:
        """Wait until Redis answers.

        Raises:
            TimeoutError: it does not answer in time.
        """
        give_up = time.monotonic() + patience_s
        with redis.Redis.from_url(self.url) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError as error:
                    if time.monotonic() > give_up:
                        raise TimeoutError(f"Redis does not answer: {error}") from error
                time.sleep(0.05)

    def stop(self) -> None:
        """End everything but Redis, in order."""
        if self.producer:
            self.producer.stop()
        for process in self.everybody:  # all at once, since each may drain for a while
            if process.alive and process.process:
                process.process.terminate()
        for process in (*self.everybody, *self.consumers):
            process.stop()

    def _python(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "tests.chaos.skewed", *words]

    def _worker(self, name: str, node: str, stages: str) -> Process:
        """A worker for these stages. Each kind of place is scarce where it is needed most."""
        slots = str(self.concurrency)
        command = self._python("hermes_queue.broker.worker", node, slots, "info")
        worker = self._process(name, command)
        worker.environment[f"{PREFIX}WORKER_STAGES"] = stages
        if self.graders_count or self.prefetch:
            agents = self.workers_count * self.concurrency
            worker.environment |= {
                f"{PREFIX}STAGES_PREFETCH": str(self.prefetch),
                f"{PREFIX}STAGES_VERIFY": str(max(1, self.concurrency // 2)),
                f"{PREFIX}STAGES_FLEET_VERIFY": str(self.concurrency),
                f"{PREFIX}STAGES_FLEET_AGENT": str(max(1, agents - 2)),
            }
        return worker

    def _process(self, name: str, command: list[str]) -> Process:
        source = str(Path(hermes_queue.__file__).parent.parent)
        ours = {
            "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])),
            JOURNAL: str(self.journal),
            SPENT: str(self.spent),
            f"{PREFIX}REDIS_URL": self.url,
            f"{PREFIX}REDIS_PREFIX": self.prefix,
            f"{PREFIX}PATHS_CACHE": str(self.cache),
            f"{PREFIX}LEASE_DURATION_S": str(self.lease_s),
            f"{PREFIX}LEASE_RENEW_S": str(self.lease_s / 4),
            f"{PREFIX}LEASE_SWEEP_S": str(self.lease_s / 8),
            f"{PREFIX}LEASE_MOVER_S": str(min(1.0, self.lease_s / 20)),
            f"{PREFIX}WORKER_SOFT_SHUTDOWN_S": "1",
            f"{PREFIX}LOCAL_REAP_S": "5",
            f"{PREFIX}RESUME_SNAPSHOT_TURNS": "1",
            f"{PREFIX}RESULTS_RETENTION_S": str(10 * 86400),
        }
        clean = {k: v for k, v in os.environ.items() if not k.startswith(PREFIX)}
        return Process(name, command, {**clean, **ours}, self.directory / name)
