"""Bare repositories on the worker that no agent can write to.

All states of a task are made here with git plumbing and private indexes. Nothing is checked out,
so no hooks, filters or attributes of a repository run. Identity, dates and messages are fixed,
so that the same content has the same ids everywhere.

A cached repository keeps what rows pin, permanently. Objects made for one trajectory are written
through `Repository.scratch` and deleted with the trajectory.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hermes_queue.disk.locks import hold, try_hold
from hermes_queue.errors import EnvInfraError
from hermes_queue.sandbox.host import execution

GIT_TIMEOUT_S = 120.0
MAX_OUTPUT_BYTES = 512 << 20
UNTRUSTED_MEMORY_BYTES = 2 << 30
"""Address space of a git that reads an agent's patch, which may be a compression bomb."""

_IDENTITY = {
    "GIT_AUTHOR_NAME": "hermes-queue",
    "GIT_AUTHOR_EMAIL": "instances@hermes-queue.invalid",
    "GIT_COMMITTER_NAME": "hermes-queue",
    "GIT_COMMITTER_EMAIL": "instances@hermes-queue.invalid",
    "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
}
_QUIET = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "LC_ALL": "C",
}
_SETTINGS = (
    "core.autocrlf=false",
    "core.filemode=true",
    "core.safecrlf=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.hooksPath=/dev/null",
    "core.quotePath=false",
    "init.templateDir=",
    "gc.auto=0",
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
)
DISK_TROUBLE = (
    "No space left on device",
    "Disk quota exceeded",
    "Read-only file system",
    "Input/output error",
)


class GitError(Exception):
    """A git command failed; the message is the end of its output."""


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs between two trees. Modes are git's; 000000 = absent."""

    new_mode: str
    oid: str
    """Id of the new blob; zeros if the path is gone."""
    path: str

    @classmethod
    def parse(cls, raw: bytes) -> list[Change]:
        """Parse the output of `git diff --raw -z --no-renames --no-abbrev`.

        Raises:
            ValueError: `raw` is malformed.
        """
        fields = raw.split(b"\0")
        if fields.pop() or len(fields) % 2:
            raise ValueError("not a raw diff")
        changes = []
        for meta, path in zip(fields[::2], fields[1::2], strict=True):
            _, new_mode, _, oid, _ = meta.decode("ascii").split(" ")
            changes.append(cls(new_mode, oid, os.fsdecode(path)))
        return changes


async def run_git(
    *args: str,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    timeout_s: float = GIT_TIMEOUT_S,
    memory_bytes: int | None = None,
) -> bytes:
    """Run git without the user's or the machine's configuration; returns its stdout.

    Raises:
        GitError: it failed, or took longer than `timeout_s`.
        EnvInfraError: the worker's disk failed.
    """
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    limit = [] if memory_bytes is None else ["prlimit", f"--as={memory_bytes}", "--"]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    result = await execution.run(
        [*limit, "git", *settings, *args],
        env={**inherited, **_IDENTITY, **_QUIET, **(env or {})},
        kill_tree=_nothing_else,
        timeout_s=timeout_s,
        stdin=stdin,
        max_output_bytes=MAX_OUTPUT_BYTES,
    )
    if result.timed_out or result.truncated:
        limits = f"{timeout_s:.0f} s or {MAX_OUTPUT_BYTES} bytes"
        raise GitError(f"git {args[0]} went over its limits ({limits})")
    if result.exit_code:
        tail = result.stderr.decode(errors="replace").strip()[-1000:]
        if any(sign in tail for sign in DISK_TROUBLE):
            raise EnvInfraError(f"git {args[0]} on the worker: {tail}")
        raise GitError(tail or f"git {args[0]} ended with {result.exit_code}")
    return result.stdout


async def _nothing_else(_: int) -> None:
    """Do nothing: children of git share its process group, which is killed anyway."""


class Repository:
    """One bare repository. Revisions and trees are named by their hex ids."""

    def __init__(self, path: Path, own_objects: Path | None = None) -> None:
        self.path = path
        self._own_objects = own_objects
        """Directory for new objects, instead of the repository itself."""

    @classmethod
    async def create(cls, path: Path) -> Repository:
        """Create an empty repository at `path`."""
        await run_git("init", "--quiet", "--bare", "--initial-branch=main", str(path))
        return cls(path)

    async def git(
        self,
        *args: str,
        stdin: bytes = b"",
        index: Path | None = None,
        timeout_s: float = GIT_TIMEOUT_S,
        memory_bytes: int | None = None,
    ) -> bytes:
        """`run_git` in this repository, optionally with a private index."""
        env = {"GIT_DIR": str(self.path)}
        if self._own_objects is not None:
            env["GIT_OBJECT_DIRECTORY"] = str(self._own_objects)
            env["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = _quoted(self.path / "objects")
        if index is not None:
            env["GIT_INDEX_FILE"] = str(index)
        return await run_git(
            *args, stdin=stdin, env=env, timeout_s=timeout_s, memory_bytes=memory_bytes
        )

    async def resolve(self, revision: str) -> str:
        """The id of `revision`, e.g. "<commit>^{tree}" or "<commit>~1". Raises GitError."""
        answer = await self.git("rev-parse", "--verify", "--quiet", "--end-of-options", revision)
        return answer.decode().strip()

    async def files(self, tree: str) -> frozenset[str]:
        """All paths of a tree."""
        listing = await self.git("ls-tree", "-r", "--name-only", "-z", tree)
        return frozenset(map(os.fsdecode, listing.split(b"\0")[:-1]))

    async def largest(self, tree: str) -> int:
        """Size of the largest file of a tree, in bytes; 0 if it has none."""
        listing = await self.git("ls-tree", "-r", "--long", "-z", tree)
        sizes = [line.partition(b"\t")[0].split()[-1] for line in listing.split(b"\0")[:-1]]
        return max((int(size) for size in sizes if size != b"-"), default=0)

    async def read(self, tree: str, path: str) -> bytes:
        """One file of a tree. Raises GitError if it does not exist."""
        return await self.git("cat-file", "blob", f"{tree}:{path}")

    async def replace(self, tree: str, files: Mapping[str, bytes | None]) -> str:
        """`tree` with these contents at these paths; None removes. Old files keep their modes."""
        listing = await self.git("ls-tree", "-r", "-z", tree)
        lines = [line.partition(b"\t") for line in listing.split(b"\0")[:-1]]
        modes = {os.fsdecode(old): meta.split(b" ")[0] for meta, _, old in lines}
        entries = []
        for path, content in files.items():
            name = os.fsencode(path)
            if content is None:
                entries.append(b"0 %s\t%s" % (b"0" * 40, name))
                continue
            oid = (await self.git("hash-object", "-w", "--stdin", stdin=content)).strip()
            entries.append(b"%s %s\t%s" % (modes.get(path, b"100644"), oid, name))
        with self._index() as index:
            await self.git("read-tree", tree, index=index)
            update = b"".join(entry + b"\0" for entry in entries)
            await self.git("update-index", "-z", "--index-info", stdin=update, index=index)
            return (await self.git("write-tree", index=index)).decode().strip()

    async def apply(
        self, tree: str, patch: bytes, *, reverse: bool = False, exclude: Iterable[str] = ()
    ) -> str | None:
        """The tree with `patch` applied, or None if it does not apply."""
        options = ["--reverse"] * reverse + [f"--exclude={path}" for path in exclude]
        with self._index() as index:
            await self.git("read-tree", tree, index=index)
            try:
                await self.git(
                    *("apply", "--cached", "--whitespace=nowarn", *options, "-"),
                    stdin=patch,
                    index=index,
                    memory_bytes=UNTRUSTED_MEMORY_BYTES,
                )
            except GitError:
                return None
            return (await self.git("write-tree", index=index)).decode().strip()

    async def commit(self, tree: str, message: str, parents: Sequence[str] = ()) -> str:
        """A commit whose id is the same wherever it is made."""
        options = [part for parent in parents for part in ("-p", parent)]
        text = message.encode() + b"\n"
        return (await self.git("commit-tree", tree, *options, stdin=text)).decode().strip()

    async def diff(self, old: str, new: str) -> bytes:
        """The patch from one tree to another, including binary files."""
        options = ("--binary", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
        return await self.git("diff-tree", "-p", *options, old, new)

    async def changes(self, old: str, new: str) -> list[Change]:
        """The paths that differ."""
        options = ("-r", "-z", "--raw", "--no-renames", "--no-abbrev")
        return Change.parse(await self.git("diff-tree", *options, old, new))

    async def pack(self, tree: str) -> tuple[str, bytes]:
        """A root commit of `tree` without history, and a pack of exactly its objects."""
        commit = await self.commit(tree, "Initial commit")
        revisions = f"{commit}\n".encode()
        return commit, await self.git("pack-objects", "--revs", "--stdout", "-q", stdin=revisions)

    @asynccontextmanager
    async def scratch(self) -> AsyncIterator[Repository]:
        """This repository; objects written in the block are deleted at its end.

        Everything in it can be read. This also deletes what killed processes left behind.
        """
        home = self.path / "scratch"
        home.mkdir(exist_ok=True)
        await asyncio.to_thread(_sweep, home)
        place = home / secrets.token_hex(8)
        place.mkdir()
        # Locked, so that other processes see that it is in use.
        async with locked(place / "in-use", shared=True) as mark:
            os.write(mark, b"1")  # from now on, the holder of the lock may clean up
            try:
                yield Repository(self.path, place)
            finally:
                # In a thread: an agent's patch may consist of thousands of files.
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, place, ignore_errors=True))

    @contextmanager
    def _index(self) -> Iterator[Path]:
        index = (self._own_objects or self.path) / f"index-{secrets.token_hex(8)}"
        try:
            yield index
        finally:
            index.unlink(missing_ok=True)
            index.with_name(index.name + ".lock").unlink(missing_ok=True)


def _quoted(path: Path) -> str:
    """Quote a path for git, which would end it at a bare colon."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _sweep(home: Path) -> None:
    """Delete directories that no process has locked. Never raises."""
    for mark in home.glob("*/in-use"):
        with suppress(OSError):
            if (descriptor := try_hold(mark, create=False)) is None:
                continue
            try:
                # A mark without content was created a moment ago and is not locked yet: deleting
                # it would take the directory from a live process.
                if os.fstat(descriptor).st_size:
                    shutil.rmtree(mark.parent, ignore_errors=True)
            finally:
                os.close(descriptor)


@asynccontextmanager
async def locked(path: Path, *, shared: bool = False) -> AsyncIterator[int]:
    """Hold the lock file `path`, which stays afterwards; yields its descriptor."""
    descriptor = await hold(path, shared=shared)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
