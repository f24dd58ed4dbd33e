"""The states of a task, and copying a tree into a slot.

start   the bug's tree without the files that hold FAIL_TO_PASS tests: the agent's workspace
graded  the bug's tree with all tests: the agent's patch is applied to it
fixed   start with the gold answer applied
"""

from __future__ import annotations

import hashlib
import shlex
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from envs.base import ReadAsset
from envs.swe.item import Item, SdistSource
from envs.swe.package.distribution import Distribution, describe
from envs.swe.recipe import RecipeMismatch
from envs.swe.repository import GitError, Repository
from envs.swe.sources import GitPin, git_repository, parent_of, sdist_repository
from hermes_queue.errors import EnvBug, SandboxError
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.settings import PathSettings

if TYPE_CHECKING:
    from envs.swe.images.workplace import ImagePlace

ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding !diff"
"""Overrides all .gitattributes: files are the bytes of their blobs, in the worker and in slots."""

GIT_ENV = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LC_ALL": "C",
}


@dataclass(frozen=True, slots=True)
class Pinned:
    """The trusted repository of a task and its three trees, by id."""

    repository: Repository
    start: str
    graded: str
    fixed: str
    distribution: Distribution | None = None
    """Metadata of the package under test."""
    image: ImagePlace | None = None
    """Where the trees belong, if the row's repository is in an image."""

    @property
    def trees(self) -> tuple[str, str, str]:
        """All that decides what a patch is made for, and how it is graded."""
        return self.start, self.graded, self.fixed

    @asynccontextmanager
    async def scratch(self) -> AsyncIterator[Pinned]:
        """The same; objects made in the block are deleted at its end."""
        async with self.repository.scratch() as repository:
            yield replace(self, repository=repository)

    async def gold(self) -> bytes:
        """The fix as a patch on the agent's starting tree."""
        return await self.repository.diff(self.start, self.fixed)

    async def solved(self) -> str:
        """The graded tree with the gold answer applied.

        Raises:
            EnvBug: it does not apply there.
        """
        tree = await self.repository.apply(self.graded, await self.gold())
        if tree is None:
            raise EnvBug("patch: it applies to the starting commit, but not to the graded one")
        return tree


_REMEMBERED = 256
_pins: OrderedDict[str, Pinned] = OrderedDict()
"""This process's recent pins. A trajectory asks three times, a group correspondingly often."""


async def pin(item: Item, read_asset: ReadAsset) -> Pinned:
    """Make, or find in the cache, everything the row pins.

    Raises:
        EnvBug: the row does not fit its source; the message names the field.
        EnvInfraError: the source cannot be fetched.
    """
    text = f"{PathSettings().cache}\0{item.model_dump_json()}"
    key = hashlib.sha256(text.encode()).hexdigest()
    pinned = _pins.get(key)
    if pinned is None or not pinned.repository.path.exists():
        pinned = await _pin(item, read_asset)
    _pins[key] = pinned
    _pins.move_to_end(key)
    while len(_pins) > _REMEMBERED:
        _pins.popitem(last=False)
    return pinned


async def _pin(item: Item, read_asset: ReadAsset) -> Pinned:
    if isinstance(item.source, SdistSource):
        pinned = await _pin_sdist(item, item.source, read_asset)
    else:
        pinned = await _pin_git(item)
    version = (item.model_extra or {}).get("version")
    own = await describe(pinned.repository, pinned.graded, item.environment, item.source, version)
    return replace(pinned, distribution=own)


async def _pin_sdist(item: Item, source: SdistSource, read_asset: ReadAsset) -> Pinned:
    repository, clean = await sdist_repository(source, item.environment.python, read_asset)
    if item.clean_commit not in (None, clean):
        raise EnvBug(
            f"clean_commit: {source.filename} makes {clean}, the row has {item.clean_commit}; "
            "the row was made from another sdist"
        )
    graded = await bug_tree(repository, clean, item)
    commit = await repository.commit(graded, f"Bug: {item.instance_id}", [clean])
    if item.base_commit not in (None, commit):
        raise EnvBug(
            f"base_commit: the bug's commit is {commit}, the row has {item.base_commit}; "
            "patch or mutation was altered, make the row again"
        )
    start = await without_hidden_files(repository, graded, graded, item)
    fix = await repository.diff(graded, clean)
    fixed = await repository.apply(start, fix, exclude=item.hidden_files)
    if fixed in (None, start):
        field = "patch" if item.mutation is None else "mutation"
        raise EnvBug(f"{field}: it changes only files that hold FAIL_TO_PASS tests")
    return Pinned(repository, start, graded, str(fixed))


async def bug_tree(repository: Repository, clean: str, item: Item) -> str:
    """The clean commit's tree with the row's `mutation` or `patch` applied. Raises EnvBug."""
    if item.mutation is None:
        tree = await repository.apply(clean, str(item.patch).encode())
        if tree is None:
            raise EnvBug("patch: it does not apply to the sdist's files; make the row again")
        return tree
    changed: dict[str, bytes | None] = {}
    for part in item.mutation.files:
        try:
            changed[part.file] = part.apply(await repository.read(clean, part.file))
        except GitError as error:
            raise EnvBug(f"mutation: the sdist has no file {part.file!r}") from error
        except RecipeMismatch as error:
            raise EnvBug(str(error)) from error
    return await repository.replace(clean, changed)


async def _pin_git(item: Item) -> Pinned:
    remote = GitPin(item.clone_url, item.instance_id, item.base_commit)
    repository, commit = await git_repository(remote)
    base = graded = await repository.resolve(f"{commit}^{{tree}}")
    if item.base_commit is None and not set(item.hidden_files) <= await repository.files(base):
        parent = await parent_of(repository, commit, remote)
        if parent is None:
            raise EnvBug(
                f"FAIL_TO_PASS: branch {item.instance_id!r} lacks these tests and has no parent "
                "commit that could hold them"
            )
        graded = await repository.resolve(f"{parent}^{{tree}}")
    if item.test_patch:
        patched = await repository.apply(graded, item.test_patch.encode())
        if patched is None:
            raise EnvBug("test_patch: it does not apply to the commit that is graded")
        graded = patched
    start = await without_hidden_files(repository, base, graded, item)
    return Pinned(repository, start, graded, await _fixed(repository, start, item))


async def _fixed(repository: Repository, start: str, item: Item) -> str:
    """Apply `patch` in the direction that works: forwards it is the fix, in reverse the bug."""
    patch = str(item.patch).encode()
    forward = await repository.apply(start, patch, exclude=item.hidden_files)
    backward = await repository.apply(start, patch, exclude=item.hidden_files, reverse=True)
    fixed = forward or backward
    if fixed is None:
        raise EnvBug(
            "patch: it applies to the starting commit neither forwards (as the fix) nor in "
            "reverse (as the bug); correct patch, base_commit or the branch"
        )
    if forward and backward:
        raise EnvBug(
            "patch: it applies to the starting commit both forwards and in reverse, so it "
            "could be the fix or the bug; give it more lines of context"
        )
    return fixed


async def without_hidden_files(repository: Repository, base: str, graded: str, item: Item) -> str:
    """The agent's starting tree. Raises EnvBug: a test that grades has no file."""
    missing = sorted(set(item.test_files) - await repository.files(graded))
    if missing:
        raise EnvBug(
            f"FAIL_TO_PASS, PASS_TO_PASS: the graded commit has no file {missing[0]!r} "
            f"({len(missing)} such files); the ids must be relative to the repository's root"
        )
    return await repository.replace(base, dict.fromkeys(item.hidden_files))


async def fill(context: SlotContext, pinned: Pinned, tree: str) -> None:
    """Put one of the row's trees into its fresh slot.

    Raises:
        SandboxError: the slot could not take it.
    """
    if pinned.image is None:
        await export(context, pinned.repository, tree)
    else:
        await pinned.image.fill(context, pinned.repository, tree)


async def export(context: SlotContext, repository: Repository, tree: str) -> None:
    """Fill the slot's empty workspace with a git repository that has `tree` as its only commit.

    Raises:
        SandboxError: the slot could not take it.
    """
    commit, pack = await repository.pack(tree)
    try:
        await context.write_file(f"{context.workspace}/.start.pack", pack)
    except OSError as error:
        raise SandboxError(f"the workspace could not be filled: {error}") from error
    script = f"""set -eu
git init --quiet --initial-branch=main --template= .
mkdir .git/info
echo {shlex.quote(ATTRIBUTES)} > .git/info/attributes
git index-pack --stdin < .start.pack > /dev/null
rm .start.pack
git update-ref refs/heads/main {commit}
git reset --quiet --hard
git config user.name agent
git config user.email agent@localhost
"""
    result = await context.run(script, env=GIT_ENV, timeout_s=300.0)
    if not result.ok:
        raise SandboxError(f"the workspace could not be filled: {result.output[-500:]}")


async def scratch_directory(context: SlotContext) -> str:
    """Create a directory in the slot, outside the workspace.

    Its user may have locked the usual places, which nobody else can.

    Raises:
        OSError: the slot could not create it.
    """
    script = """chmod u+rwx /tmp || true
for place in /tmp /var/tmp /dev/shm; do mktemp -d -p "$place" && exit; done"""
    result = await context.run(script, env=GIT_ENV, cwd="/", timeout_s=30.0)
    path = result.stdout.decode(errors="replace").strip()
    if not result.ok or not path.startswith("/") or "\n" in path:
        raise OSError(f"no scratch directory: {result.output[-300:]}")
    return path
