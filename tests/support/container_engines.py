"""Real container engines for tests: dockerd and podman's service, all their state in one place.

As root on Debian, missing packages are installed. Engines listen on unix sockets only, and change
no firewall rule and no bridge of the host. Elsewhere an engine that runs already is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from hermes_queue.errors import HermesQueueError
from hermes_queue.settings import PathSettings

PACKAGES = {
    "docker": ("docker.io", "runc"),
    "podman": ("podman", "runc", "conmon", "netavark"),
    "image": ("mmdebstrap",),
}
PROGRAMS = {"docker": "dockerd", "podman": "podman", "image": "mmdebstrap"}
BASE_PACKAGES = ("python3", "python3-pip", "python3-venv", "git", "procps")
"""Of the one base image of all tests: what `python:3.11` has of what they use."""
SUITE = "bookworm"
BASE = "localhost/hermes-queue-test:base"
MEMORY_MB = 256
"""What a slot of the tests may use."""
START_S, START_TRIES = 60.0, 3
POLICY = Path("/usr/sbin/policy-rc.d")


class NoEngine(Exception):
    """An engine cannot be started here; the text says why."""


def install_packages(*what: str) -> None:
    """Install Debian packages of `PACKAGES` whose program is missing. Raises NoEngine."""
    missing = [name for name in what or PACKAGES if shutil.which(PROGRAMS[name]) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        programs = ", ".join(PROGRAMS[name] for name in missing)
        raise NoEngine(f"no {programs} here; as root on Debian the tests install them")
    packages = [package for name in missing for package in PACKAGES[name]]
    with _exclusively("packages"), _no_services():
        for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            done = subprocess.run(
                ["apt-get", "-o", "DPkg::Lock::Timeout=600", "--quiet", *arguments],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise NoEngine(f"apt-get {arguments[0]} failed: {done.stderr[-500:]}")


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Keep packages from starting services, which would be engines of this host."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


@contextlib.contextmanager
def _exclusively(name: str) -> Iterator[None]:
    with Path(tempfile.gettempdir(), f"hermes-queue-test-{name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def base_image() -> Any:
    """The base image of all tests."""
    return _of_images().BaseImage(SUITE, BASE_PACKAGES, python_link=True)


def base_tarball(cache: Path) -> Path:
    """An archive of its root file system, made once and kept in `cache`.

    Not within a running event loop. Raises NoEngine: it cannot be made.
    """
    install_packages("image")
    try:
        archive: Path = asyncio.run(
            _of_images().make_base_image(base_image(), cache / "images" / "bases")
        )
    except HermesQueueError as why:
        raise NoEngine(str(why)) from why
    return archive


def _of_images() -> Any:
    """A module of the plugin that makes base images, without which engines have none."""
    return import_module("hermes_plugins.images.base_image")


@dataclass
class EngineProcess:
    """An engine that a test may kill and start again."""

    kind: str
    directory: Path
    argv: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.directory / f"{self.kind}.sock"

    @property
    def address(self) -> str:
        """The same as a URL."""
        return f"unix://{self.socket}"

    def start(self) -> None:
        """Start it, and wait until it answers. Raises NoEngine."""
        for _ in range(START_TRIES):  # a killed dockerd's containerd may need time on a busy host
            if self._start():
                return
        self.stop()
        raise NoEngine(f"{self.kind} did not start: {self._log()}")

    def _start(self) -> bool:
        with (self.directory / f"{self.kind}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                env={**os.environ, **self.environment},
                cwd=self.directory,  # Podman's children leave files where its service runs.
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        ends = time.monotonic() + START_S
        while not answers(self.socket):
            if self.process.poll() is not None or time.monotonic() > ends:
                return False
            time.sleep(0.1)
        return True

    def kill(self) -> None:
        """End it as a crash would. Containers go on until it is started again."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.socket.unlink(missing_ok=True)

    def stop(self) -> None:
        """End it, and what it has started."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=30)
            if self.process.poll() is None:
                self.kill()
        with contextlib.suppress(OSError, ValueError):  # the one of a killed dockerd stays
            pid = int((self.directory / "run/containerd/containerd.pid").read_text())
            os.kill(pid, signal.SIGTERM)
        _end_below(self.directory)

    def _log(self) -> str:
        lines = (self.directory / f"{self.kind}.log").read_text(errors="replace").splitlines()
        told = [line for line in lines if "level=info" not in line and "level=debug" not in line]
        return " | ".join(told[-5:])[-1500:]


def answers(socket_path: Path) -> bool:
    """Whether an engine answers on the socket."""
    import socket

    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2)
            client.connect(str(socket_path))
            client.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
            return b" 200 " in client.recv(100)
    except OSError:
        return False


def _end_below(directory: Path) -> None:
    """End processes of the engine that outlived it, and unmount what is mounted there."""
    mark = str(directory).encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if mark in command and int(entry.name) != os.getpid() and b"pytest" not in command:
                if b"conmon" in command or b"containerd" in command:
                    os.kill(int(entry.name), signal.SIGKILL)
    for _ in range(3):
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for place in sorted((p for p in mounts if p.startswith(f"{directory}/")), reverse=True):
            subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)


@contextlib.contextmanager
def docker_engine(directory: Path) -> Iterator[EngineProcess]:
    """A dockerd of its own. Raises NoEngine."""
    install_packages("docker")
    engine = EngineProcess(
        "docker",
        directory,
        [
            *("dockerd", "--host", f"unix://{directory}/docker.sock"),
            *("--data-root", f"{directory}/data", "--exec-root", f"{directory}/run"),
            *("--pidfile", f"{directory}/docker.pid", "--bridge=none"),
            *("--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"),
            *("--userland-proxy=false", "--exec-opt", "native.cgroupdriver=cgroupfs"),
        ],
    )
    with _running(engine):
        yield engine


@contextlib.contextmanager
def podman_engine(directory: Path) -> Iterator[EngineProcess]:
    """Podman's service with its Docker-compatible API. Raises NoEngine."""
    install_packages("podman")
    # crun refuses hosts that have control groups of both versions.
    runtime = "runc" if Path("/sys/fs/cgroup/unified").exists() else "crun"
    runtime = runtime if shutil.which(runtime) else "runc"
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = 1 << 20 if files == resource.RLIM_INFINITY else files
    settings = directory / "containers.conf"
    # Its default for open files needs a right that root of a container lacks; and by default a
    # process stays for five minutes after each command.
    settings.write_text(
        f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=30000:30000"]\n'
        "[engine]\nexit_command_delay = 10\n"
    )
    engine = EngineProcess(
        "podman",
        directory,
        [
            *("podman", "--root", f"{directory}/data", "--runroot", f"{directory}/run"),
            *("--cgroup-manager", "cgroupfs", "--runtime", runtime, "--events-backend", "file"),
            *("--storage-driver", "overlay", "system", "service", "--time", "0"),
            f"unix://{directory}/podman.sock",
        ],
        {"CONTAINERS_CONF": str(settings), "TMPDIR": str(directory)},
    )
    with _running(engine):
        yield engine


@contextlib.contextmanager
def _running(engine: EngineProcess) -> Iterator[EngineProcess]:
    if os.geteuid() != 0:
        raise NoEngine("only root can start an engine here")
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()


@contextlib.contextmanager
def engine_directory() -> Iterator[Path]:
    """A directory with a short path: that of a socket has at most 107 characters."""
    directory = Path(tempfile.mkdtemp(prefix="hq-engine-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


ENGINES: dict[str, Any] = {"docker": docker_engine, "podman": podman_engine}

if __name__ == "__main__":
    # prepare: install what is missing, make the base image.
    # docker|podman DIRECTORY: an engine until Ctrl-C.
    what = sys.argv[1]
    if what == "prepare":
        with contextlib.suppress(NoEngine):  # the tests say why, and are skipped
            install_packages()
            base_tarball(PathSettings().cache)
    else:
        with ENGINES[what](Path(sys.argv[2])) as running:
            sys.stdout.write(f"{running.address}\n")
            sys.stdout.flush()
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
