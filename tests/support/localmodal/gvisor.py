"""Sandboxes inside gVisor, as on Modal: gVisor's kernel serves them, not the host's.

As on Modal, memory belongs to one process of the host, so that exceeding the limit ends the
sandbox. Files inside have the same uids as outside. For tests, as root.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hermes_queue.errors import IsolationUnavailable, SandboxError
from hermes_queue.sandbox.host import cgroups
from hermes_queue.sandbox.host.paths import is_root
from hermes_queue.sandbox.host.processes import is_running, kill_process, read_stat
from localmodal.enclosure import CAPABILITIES, SHELL, Enclosure

CALL_TIMEOUT_S = 60.0
NAMESPACES = ("pid", "ipc", "uts", "mount")
PID_FILE = "-internal-pid-file="


def check_gvisor() -> str:
    """The path of runsc; raises IsolationUnavailable without it, and without root."""
    runsc = shutil.which("runsc")
    if runsc is None or not is_root():
        raise IsolationUnavailable("sandboxes in gVisor need runsc, as root: `apt install runsc`")
    return runsc


class GvisorEnclosure(Enclosure):
    """One sandbox as a container of runsc."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pid = self._started = self._commands = 0
        self._runsc = [check_gvisor(), "--root", str(self.directory / "runsc")]
        self._runsc += ["--network", "host" if self.network else "none"]
        self._runsc += ["--ignore-cgroups", "--file-access", "shared", "--overlay=false"]

    async def start(self) -> None:
        """See `Enclosure`."""
        await self._furnish()
        for place in (self.directory / "bundle", self.directory / "pids"):
            place.mkdir()
        for name, mode in (("tmp", 0o1777), ("var/tmp", 0o1777), ("root", 0o700)):
            (self.rootfs / name).mkdir(parents=True, exist_ok=True)
            (self.rootfs / name).chmod(mode)
        config = json.dumps(self._config(self._layout_for_oci()))
        (self.directory / "bundle" / "config.json").write_text(config)
        self._groups = cgroups.create(
            f"hermes-queue-{self.sandbox_id}",
            memory_mb=self.memory_mb,
            max_pids=0,  # it would also limit gVisor's own threads
        )
        prefix = self._groups.enter_prefix() if self._groups else []
        run = ["run", "--bundle", str(self.directory / "bundle"), "--detach", self.sandbox_id]
        await self._call(*prefix, *self._runsc, *run)
        state = json.loads(await self._call(*self._runsc, "state", self.sandbox_id))
        stat = read_stat(int(state["pid"]))
        if stat is None:
            raise SandboxError("the sandbox ended at once")
        self._pid, self._started = int(state["pid"]), stat.started
        self._record(self._pid, self._started)

    async def _call(self, *argv: str) -> bytes:
        # Into a file: processes that runsc leaves behind inherit its streams.
        log = self.directory / "runsc.log"
        with log.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )
            async with asyncio.timeout(CALL_TIMEOUT_S):
                code = await process.wait()
        output = log.read_bytes()
        if code:
            raise SandboxError(f"{argv[0]}: {output.decode(errors='replace').strip()[-500:]}")
        return output

    def _layout_for_oci(self) -> list[dict[str, object]]:
        """OCI mounts equivalent to the arguments for bubblewrap."""
        words = self._mounts()
        mounts: list[dict[str, object]] = []
        for index, word in enumerate(words):
            if word in ("--ro-bind", "--ro-bind-try", "--bind") and words[index + 2] != "/":
                source, target = words[index + 1 : index + 3]
                if os.path.exists(source):
                    flags = ["rbind", "rw" if word == "--bind" else "ro"]
                    mounts.append(_mount(target, "bind", source, flags))
            elif word == "--symlink" and not os.path.lexists(self._inside(words[index + 2])):
                os.symlink(words[index + 1], self._inside(words[index + 2]))
            elif word == "--dir":
                self._inside(words[index + 1]).mkdir(parents=True, exist_ok=True)
        shared = _mount("/dev/shm", "tmpfs", "tmpfs", ["nosuid", "mode=1777"])
        return [_mount("/proc", "proc", "proc", []), shared, *mounts]

    def _inside(self, path: str) -> Path:
        return self.rootfs / path.lstrip("/")

    def _config(self, mounts: Sequence[Mapping[str, object]]) -> dict[str, object]:
        # Mounting inside only concerns the sandbox's own kernel.
        held = (*CAPABILITIES[self.capabilities], "sys_admin")
        names = [f"CAP_{name.upper()}" for name in held]
        kinds = ("bounding", "effective", "permitted")
        return {
            "ociVersion": "1.0.2",
            "root": {"path": str(self.rootfs)},
            "hostname": "modal",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": ["/bin/sleep", "infinity"],
                "cwd": "/",
                "capabilities": dict.fromkeys(kinds, names),
            },
            "mounts": list(mounts),
            "linux": {"namespaces": [{"type": kind} for kind in NAMESPACES]},
        }

    def is_alive(self) -> bool:
        """See `Enclosure`."""
        return self._pid > 0 and is_running(self._pid, self._started)

    def command(
        self, cwd: str, argv: Sequence[str], environment: Mapping[str, str]
    ) -> list[str | bytes]:
        """See `Enclosure`."""
        self._commands += 1
        pid_file = self.directory / "pids" / str(self._commands)
        variables = [f"-env={name}={value}" for name, value in environment.items()]
        call = [*self._runsc, "exec", f"{PID_FILE}{pid_file}", *variables, self.sandbox_id]
        return [*call, "/bin/sh", "-c", SHELL, "sh", cwd, *argv]

    async def kill_tree(self, pid: int) -> None:
        """See `Enclosure`; only the command's first process is known here, not its tree."""
        inner = await asyncio.to_thread(_inner_pid, pid)
        if inner is None:
            return
        kill = ["kill", f"-pid={inner}", self.sandbox_id, "KILL"]
        try:
            await self._call(*self._runsc, *kill)
        except SandboxError:
            return  # it has already ended

    async def stop(self) -> None:
        """See `Enclosure`."""
        if self._pid:
            await asyncio.to_thread(self._kill)
            await self._call(*self._runsc, "delete", "--force", self.sandbox_id)
            self._pid = 0
        if self._groups is not None:
            await asyncio.to_thread(self._groups.remove)
            self._groups = None

    def _kill(self) -> None:
        kill_process(self._pid, self._started)
        deadline = time.monotonic() + CALL_TIMEOUT_S
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)


def _inner_pid(pid: int) -> int | None:
    """The pid inside of a `runsc exec`; None if it has not started or has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        place = next(word for word in words if word.startswith(PID_FILE))
        return int(Path(place.removeprefix(PID_FILE)).read_text())
    except (OSError, StopIteration, ValueError):
        return None


def _mount(target: str, kind: str, source: str, options: Sequence[str]) -> dict[str, object]:
    return {"destination": target, "type": kind, "source": source, "options": list(options)}
