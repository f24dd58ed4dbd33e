"""What slots with images need of this host: programs, a range of ids, and a place for their files.

<cache>/slots/<sandbox id>/<name>/    files of one step, see `boot_process`
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from hermes_plugins.images.rootfs import unlinked
from hermes_plugins.images.rootfs.boot_process import FAILED
from hermes_plugins.images.rootfs.fence import boot_command, boot_request
from hermes_plugins.images.rootfs.slot import DiskUsage
from hermes_plugins.images.steps import LayerStack, StepResult
from hermes_queue.cancellation import unbroken
from hermes_queue.errors import IsolationUnavailable, SandboxError
from hermes_queue.sandbox.host import interpreter
from hermes_queue.sandbox.host.execution import Child, follow, memory_file, run
from hermes_queue.sandbox.host.isolation import FencePrograms, find_tools
from hermes_queue.sandbox.host.paths import check_cache, is_root, remove_tree, slot_directory
from hermes_queue.sandbox.host.processes import kill_process, read_stat
from hermes_queue.sandbox.host.user_namespaces import IdMap, UserNamespaces, find_id_map
from hermes_queue.sandbox.local.registry import HostRegistry

logger = logging.getLogger(__name__)

MEASURE_TIMEOUT_S = 120.0
MOST_OUTPUT_BYTES = 128 << 10
"""Of a step: the first and the last half are kept."""
OTHER_BACKENDS = "or set HERMES_QUEUE_SANDBOX_BACKEND to docker or modal"


class RootfsHost:
    """Runs programs of ours as root of the range, on trees of layers. Belongs to one event loop."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self._registry = HostRegistry(cache, remove=self.remove)
        self._sandbox: Path | None = None
        self._opening = asyncio.Lock()

    @functools.cached_property
    def tools(self) -> FencePrograms:
        """Programs for isolation. Blocking. Raises IsolationUnavailable."""
        check_cache(self.cache, fenced=True)
        return find_tools(self.cache)

    @functools.cached_property
    def ids(self) -> IdMap:
        """The range. Blocking. Raises IsolationUnavailable: there is none; says what to install."""
        found = find_id_map(self.tools.setpriv)
        if not found.is_range:
            raise IsolationUnavailable(
                f"slots with images need a range of 65536 user ids: {found.reason}; "
                f"{OTHER_BACKENDS}"
            )
        return found

    @functools.cached_property
    def _users(self) -> UserNamespaces:
        """Namespaces in which nothing of a slot runs. Blocking. Raises IsolationUnavailable."""
        return UserNamespaces(self.ids)

    @functools.cached_property
    def python(self) -> Path:
        """A Python that root of the range may run. Blocking. Raises EnvInfraError."""
        return interpreter.prepare(None, self.cache).executable

    async def new_place(self) -> Path:
        """A path for the files of one step, which `remove` deletes, also after our death."""
        async with self._opening:
            if self._sandbox is None or not self._sandbox.is_dir():
                name = f"images-{secrets.token_hex(6)}"
                self._sandbox = await asyncio.to_thread(self._registry.open, name, {})
        return self._sandbox / f"step-{secrets.token_hex(8)}"

    async def check(self) -> None:
        """Mount layers once. Raises IsolationUnavailable: slots with images cannot work here."""
        place = await self.new_place()
        await asyncio.to_thread(lambda: self.ids)
        lower, upper = (place.with_name(f"{place.name}-{part}") for part in ("lower", "upper"))
        try:
            for path in (lower, upper):
                slot_directory(path, owner=self.ids.host_id)
            done = await self.edit(LayerStack((lower,), upper), "print('mounted')", [])
            if done.output.strip() != b"mounted":
                raise IsolationUnavailable(done.output.decode(errors="replace").strip())
        finally:
            for path in (lower, upper):
                await asyncio.to_thread(self.remove, path)

    async def edit(
        self,
        stack: LayerStack,
        program: str,
        arguments: Sequence[str],
        *,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        timeout_s: float = 600.0,
    ) -> StepResult:
        """See `StepRunner`."""
        place = await self.new_place()
        try:
            await asyncio.to_thread(self._prepare_edit, place)
            tree = place / "merged" if stack.lower else stack.upper
            assert tree is not None  # noqa: S101 - a stack has layers or a directory for changes
            request = {
                **boot_request(self.ids, self._users, place),
                "network": "none",
                "layers": list(map(str, stack.lower)),
                "upper": None if stack.upper is None else str(stack.upper),
                "points": [],
                "binds": [],
                "program": str(self.python),
                "words": [str(self.python), "-I", "-S", "-c", program, str(tree), *arguments],
                "end": [],
            }
            return await self._boot(request, stdin, stdout, timeout_s)
        except OSError as error:
            raise SandboxError(f"a step of an image could not be run: {error}") from error
        finally:
            await unbroken(asyncio.to_thread(self.remove, place))

    def _prepare_edit(self, place: Path) -> None:
        slot_directory(place, 0o700, owner=self.ids.host_id)
        # Looked up here, off the event loop.
        _ = self._users, self.python

    async def _boot(
        self,
        request: dict[str, object],
        stdin: IO[bytes] | None,
        stdout: IO[bytes] | None,
        timeout_s: float,
    ) -> StepResult:
        file = memory_file(json.dumps(request).encode())

        def start(source: int, output: int, _: int) -> Child:
            return Child(
                boot_command(file),
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
                stdin=source if stdin is None else stdin.fileno(),
                stdout=output if stdout is None else stdout.fileno(),
                stderr=output,
                pass_fds=(file, self._users.outer, self._users.nested),
            )

        try:
            done = await follow(
                start,
                kill_tree=_kill_one,
                timeout_s=timeout_s,
                max_output_bytes=MOST_OUTPUT_BYTES,
                owner=self.ids.host_id,
            )
        finally:
            os.close(file)
        if done.exit_code == FAILED:
            raise IsolationUnavailable(done.stdout.decode(errors="replace").strip())
        return StepResult(done.exit_code, done.stdout, done.timed_out)

    async def measure(self, directory: Path, first_pid: int) -> DiskUsage | None:
        """Disk space of the files of a slot, which may change meanwhile; see `MeasureDisk`."""
        users = await asyncio.to_thread(lambda: self._users)
        prefix = [] if is_root() else users.enter_outer(self.tools.nsenter)
        commands = [
            ["du", "-sx", "--inodes", "--", str(directory)],
            ["du", "-sx", "--block-size=1M", "--", str(directory)],
        ]
        if not await asyncio.to_thread(unlinked.is_idle, first_pid):
            own = [sys.executable, "-I", "-S", str(unlinked.__file__)]
            commands.append([*own, str(first_pid), str(directory)])
        numbers = []
        for words in commands:
            done = await run(
                [*prefix, *words],
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                kill_tree=_kill_one,
                timeout_s=MEASURE_TIMEOUT_S,
                max_output_bytes=4096,
                pass_fds=(users.outer,),
            )
            if done.timed_out:
                return None
            # It fails if a file is deleted under it, and says the sum of the others.
            said = done.stdout.split()
            numbers.append(int(said[0]) if said and said[0].isdigit() else 0)
        files, *megabytes = numbers
        return DiskUsage(sum(megabytes), files)

    def remove(self, path: Path) -> None:
        """Delete files of any ids of the range at `path`. Blocking. Raises OSError: some are left.

        No process may work on them any more.
        """
        if not os.path.lexists(path):
            return
        # Outside, we have no rights over files with other ids.
        if not is_root() and (users := self._own_users()):
            words = ["find", str(path), "-mindepth", "1", "-delete"]
            subprocess.run(  # noqa: S603
                [*users.enter_outer(self.tools.nsenter), *words],
                capture_output=True,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                cwd="/",
                pass_fds=(users.outer,),
                check=False,
            )
        remove_tree(path)

    def discard(self, path: Path) -> None:
        """As `remove`; what cannot be deleted goes with its sandbox. Blocking, never raises."""
        try:
            self.remove(path)
        except OSError as error:
            extra = {"action": "slot_left_something"}
            logger.warning("cannot delete %s: %s", path, error, extra=extra)

    def _own_users(self) -> UserNamespaces | None:
        try:
            return self._users
        except IsolationUnavailable:
            return None  # Then there never was a slot with other ids.

    async def close(self) -> None:
        """Delete what is left of steps. Idempotent."""
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await asyncio.to_thread(self._registry.end, sandbox.name)
        if "_users" in vars(self):
            self._users.close()
            del self._users


async def _kill_one(pid: int) -> None:
    if stat := read_stat(pid):
        kill_process(pid, stat.started)
