"""Processes for one turn: redis-server, workers, programs of peers in their own environments."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from benchmarks.measuring import Turn, metered
from hermes_queue.broker.embedded import ENCODING_OPTIONS, find_redis_server

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "benchmarks" / "peers"
VENVS = ROOT / ".venv-peers"
QUIET = subprocess.DEVNULL


def until(
    condition: Callable[[], object], *running: subprocess.Popen[str], limit_s: float = 300.0
) -> None:
    """Poll until `condition` holds. Raises RuntimeError: it takes too long, or a process ended."""
    give_up = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > give_up:
            raise RuntimeError(f"waited {limit_s:.0f} s in vain")
        for child in running:
            if child.poll() is not None:
                raise RuntimeError(f"{child.args!r} ended with exit code {child.returncode}")
        time.sleep(0.01)


@contextmanager
def process(
    command: Sequence[str | Path], *, patience_s: float = 60.0, **options: object
) -> Iterator[subprocess.Popen[str]]:
    """Run it while the block runs; then ask it to end, and kill it if it takes longer."""
    child: subprocess.Popen[str] = subprocess.Popen(command, text=True, **options)  # type: ignore[call-overload]
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(patience_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@dataclass(frozen=True)
class Server:
    """A redis-server of our own."""

    path: str
    """Of its socket."""
    pid: int
    client: redis.Redis

    @property
    def url(self) -> str:
        """As redis-py takes it."""
        return f"unix://{self.path}?db=0"

    def number(self, section: str, name: str) -> float:
        """A field of INFO."""
        return float(self.client.info(section)[name])


@contextmanager
def redis_server(*, rewrites: bool = False) -> Iterator[Server]:
    """With AOF, written every second, as in production; gone at the end.

    Unless `rewrites`, the file is never rewritten: that would fall into some turns and not into
    others.
    """
    with tempfile.TemporaryDirectory(prefix="hq-bench-") as directory:
        path = f"{directory}/redis.sock"
        command = [find_redis_server(), "--port", "0", "--unixsocket", path, "--dir", directory]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
        command += [] if rewrites else ["--auto-aof-rewrite-percentage", "0"]
        command += ENCODING_OPTIONS
        with process(command, stdout=QUIET) as server, redis.Redis(unix_socket_path=path) as client:
            until(lambda: answers(client), server)
            yield Server(path, server.pid, client)


def answers(client: redis.Redis) -> bool:
    """Whether the server listens. Its socket is there a moment before."""
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@contextmanager
def worker(
    server: Server, settings: Mapping[str, str], *, concurrency: int = 64
) -> Iterator[subprocess.Popen[str]]:
    """One worker of ours, with the default settings but for `settings`.

    The end of its log is shown if the block fails.
    """
    command = [sys.executable, "-m", "celery", "-A", "hermes_queue", "worker", "-l", "error"]
    command += ["-c", str(concurrency), "--without-gossip", "--without-mingle"]
    command += ["-n", f"{secrets.token_hex(4)}@%h"]
    with tempfile.TemporaryDirectory(prefix="hq-bench-") as spool:
        own = {"HERMES_QUEUE_REDIS_URL": server.url, "HERMES_QUEUE_PATHS_SPOOL": spool}
        environment = {**os.environ, **own, **settings}
        with (
            tempfile.TemporaryFile() as log,
            process(command, env=environment, stdout=QUIET, stderr=log) as running,
        ):
            try:
                yield running
            except Exception:
                log.seek(0)
                print(log.read().decode(errors="replace")[-4000:], file=sys.stderr)
                raise


@contextmanager
def reader(server: Server, group: str) -> Iterator[subprocess.Popen[str]]:
    """A process that consumes and acknowledges everything."""
    environment = {**os.environ, "HERMES_QUEUE_REDIS_URL": server.url}
    command = [sys.executable, "-m", "benchmarks.reader", group]
    with process(command, cwd=ROOT, env=environment, stdout=QUIET) as running:
        yield running


def peer_python(name: str, at_least: tuple[int, int] = (3, 11)) -> Path | str:
    """The Python of a peer's virtual environment, installed if necessary; or why there is none.

    A peer that asks for `at_least` a newer Python than this one gets one that is there already.
    """
    lock = PEERS / f"{name}.txt"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    home = VENVS / name
    python, made = home / "bin" / "python", home / ".made"
    if made.exists() and made.read_text() == digest and _runs(python, at_least):
        return python
    base = next(pythons(at_least), None)
    if base is None:
        return f"needs Python {at_least[0]}.{at_least[1]} or newer, and none was found"
    print(f"installing {name} into {home}", file=sys.stderr)
    install: list[list[str | Path]] = [
        [base, "-m", "venv", "--clear", home],
        ["bash", ROOT / "requirements" / "install.sh", python, lock, "alone"],
    ]
    for command in install:
        if subprocess.run(command, stdout=QUIET).returncode:
            return f"could not be installed from benchmarks/peers/{lock.name}"
    made.write_text(digest)
    return python


def pythons(at_least: tuple[int, int]) -> Iterator[str]:
    """This Python, those on the PATH, and one that uv knows of, if they are new enough and run."""
    if sys.version_info >= at_least:
        yield sys.executable
    names = [f"python{at_least[0]}.{minor}" for minor in range(at_least[1], at_least[1] + 4)]
    for name in [*names, "python3"]:
        for directory in os.get_exec_path():
            found = shutil.which(name, path=directory)
            if found and _runs(found, at_least):
                yield found
    if uv := shutil.which("uv", path=Path(sys.executable).parent) or shutil.which("uv"):
        wanted = f">={at_least[0]}.{at_least[1]}"
        find = [uv, "python", "find", "--no-python-downloads", "--no-project", wanted]
        done = subprocess.run(find, capture_output=True, text=True)
        if done.returncode == 0 and _runs(done.stdout.strip(), at_least):
            yield done.stdout.strip()


def _runs(python: str | Path, at_least: tuple[int, int]) -> bool:
    """Whether it really runs, which a launcher without its version does not, and is new enough."""
    check = f"import sys; sys.exit(sys.version_info < {at_least!r})"
    try:
        return subprocess.run([python, "-c", check], capture_output=True).returncode == 0
    except OSError:
        return False


def peer_turn(python: Path, program: str, *arguments: object) -> Turn:
    """Run a program of `benchmarks/peers/`, which measures itself and prints it as JSON."""
    with tempfile.TemporaryDirectory(prefix="hq-bench-") as directory:
        command = [str(python), str(PEERS / program), *map(str, arguments)]
        with metered() as meter:
            done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{program} failed: {done.stderr[-2000:]}")
    figures = json.loads(done.stdout.splitlines()[-1])
    return Turn(**figures, busy_elsewhere=meter.busy_elsewhere)


def versions_of(lock: Path) -> Iterator[str]:
    """The requirements that a lock pins."""
    for line in lock.read_text().splitlines():
        if "==" in line and not line.startswith((" ", "#")):
            yield line.split(";")[0].strip(" \\")
