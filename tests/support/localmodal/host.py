"""Host resources that the sandboxes of a server share: programs, ids, directories, file trees."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hermes_queue.errors import IsolationUnavailable
from hermes_queue.sandbox.host import interpreter
from hermes_queue.sandbox.host.isolation import find_tools, host_python
from hermes_queue.sandbox.host.paths import check_cache, is_root, remove_tree, shared_directory
from hermes_queue.sandbox.host.user_namespaces import IdMap, UserNamespaces, find_id_map
from hermes_queue.sandbox.local.registry import HostRegistry

logger = logging.getLogger(__name__)

FILE_TOOL = "/__modal/.bin/modal-sandbox-fs-tools"
FILE_TOOL_SOURCE = Path(__file__).with_name("file_tool.py")


class Host:
    """Resources of one server on this machine. Methods block unless they are coroutines.

    <root>/slots/<server id>/<sandbox id>/rootfs    a sandbox's own files
                             images/<image id>      files of a snapshot
                             volumes/<volume id>    committed files
    """

    def __init__(self, root: Path) -> None:
        """Find the programs, remove sandboxes of dead servers, and create the directories.

        Raises:
            IsolationUnavailable: sandboxes cannot be isolated here; the message has the fix.
        """
        check_cache(root, fenced=True)
        self.tools = find_tools(root)
        if shutil.which("unshare") is None:
            raise IsolationUnavailable("unshare not found on PATH; `apt install util-linux`")
        self.ids: IdMap = find_id_map(self.tools.setpriv)
        self.tools = replace(self.tools, drop=self.ids.drop)
        self.files = UserNamespaces(self.ids)
        """Namespace in which sandboxes' files are copied and deleted, with rights over them
        only."""
        try:
            host_python()
            self.python = interpreter.prepare(None, root)
            self._registry = HostRegistry(root, remove=self.remove)
            if ended := self._registry.reclaim():
                names = ", ".join(ended)
                logger.info(
                    "removed sandboxes of dead servers: %s", names, extra={"action": "reclaim"}
                )
            self._id = f"localmodal-{secrets.token_hex(6)}"
            self.directory = self._registry.open(self._id, {"pid": str(os.getpid())})
            self._furnish()
        except BaseException:
            self.files.close()
            raise

    def _furnish(self) -> None:
        shared_directory(self.directory / "empty")
        self.file_tool = self.directory / "file_tool"
        shutil.copyfile(FILE_TOOL_SOURCE, self.file_tool)
        self.file_tool.chmod(0o755)
        self.logs = self.directory / "logs"
        self.logs.mkdir(mode=0o700)
        for name in ("images", "volumes"):
            self.owned_directory(self.directory / name)

    def owned_directory(self, path: Path, mode: int = 0o711) -> Path:
        """Create `path`, owned by the sandboxes' root."""
        path.mkdir()
        path.chmod(mode)
        if is_root():
            os.chown(path, self.ids.host_id, self.ids.host_id)
        return path

    def run(
        self, argv: Sequence[str], *, stdin: int = subprocess.DEVNULL, pass_fds: Sequence[int] = ()
    ) -> bytes:
        """Run a host program as the sandboxes' root, without rights over the host.

        Raises:
            OSError: it failed; the message has the end of its stderr.
        """
        done = subprocess.run(
            [*self.files.enter_outer(self.tools.nsenter), *argv],
            stdin=stdin,
            capture_output=True,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
            cwd="/",
            pass_fds=(self.files.outer, *pass_fds),
            check=False,
        )
        if done.returncode:
            stderr = done.stderr.decode(errors="replace").strip()[-500:]
            raise OSError(f"{argv[0]}: {stderr or f'exit code {done.returncode}'}")
        return done.stdout

    async def copy(self, source: Path, target: Path) -> None:
        """Copy the tree `source`, which must not change meanwhile, to `target`."""
        argv = ["cp", "-a", "--reflink=auto", "--", str(source), str(target)]
        await asyncio.to_thread(self.run, argv)

    def remove(self, path: Path) -> None:
        """Delete files of sandboxes at `path`; their processes must be dead.

        Raises:
            OSError: some files are still there.
        """
        if self.ids.by == "newuidmap" and path.is_dir():
            # Outside, we have no rights over files with other ids.
            self.run(["find", str(path), "-mindepth", "1", "-delete"])
        remove_tree(path)

    def close(self) -> None:
        """Delete everything. Sandboxes must have ended. Idempotent; never raises."""
        try:
            self._registry.end(self._id)
        except OSError as error:
            logger.warning(
                "%s could not be deleted: %s",
                self.directory,
                error,
                extra={"action": "sandbox_left"},
            )
        self.files.close()
