"""The agent's changes as a patch: extracted in the slot, checked in the worker.

The slot's answers may be the agent's, so they are untrusted input: the worker decides which
paths count, and checks the final patch again with its own git. Nothing else of the agent
survives into grading.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from envs.swe.item import PYTEST_OWN, Item
from envs.swe.repository import Change, GitError
from envs.swe.workspace import ATTRIBUTES, GIT_ENV, Pinned, scratch_directory
from hermes_queue.sandbox.context import SlotContext

MAX_PATCH_BYTES = 2 << 20
MAX_LISTING_BYTES = 16 << 20
TAKING_S = 180.0
"""Time for everything that a slot does to show an agent's changes."""
TAKING_SHARE = 3
"""At most this part of what the stage has left: an untouched slot may have to be asked, too."""

TEST_DIRECTORIES = {
    **{name: name for name in ("test", "tests", "testing", "spec", "specs")},
    "testdata": "tests?[-_]?data",
}
"""Name for people -> pattern of the directories that hold tests."""
TEST_MODULES = {
    "test_*.py": "test_[^/]*",
    "*_test.py": "[^/]*_test",
    **{f"{name}.py": name for name in ("test", "tests", "conftest")},
}
"""Name for people -> pattern of the modules that are tests, without `.py`."""

_PROTECTED = re.compile(
    rf"(^|/)({'|'.join(TEST_DIRECTORIES.values())})/"
    rf"|(^|/)({'|'.join(TEST_MODULES.values())}|sitecustomize|usercustomize)\.py$"
    r"|(^|/)(\.?pytest\.(ini|toml)|tox\.(ini|toml)|setup\.(cfg|py)|pyproject\.toml|noxfile\.py"
    r"|\.coveragerc|\.gitattributes|\.gitmodules|entry_points\.txt|PKG-INFO|MANIFEST\.in)$"
    r"|(^|/)EGG-INFO/|\.(egg-info|dist-info|egg)(/|$)"
    r"|\.(pth|egg-link|so|pyd|pyc)$"
)
"""Tests, and files that configure tests, packaging or the interpreter's start."""

_FOREIGN_MODULES = frozenset(sys.stdlib_module_names | PYTEST_OWN | {"_pytest", "py"})
"""Names that no new module of the package may have: other code would import it instead."""

MAX_CHANGES = 20_000
"""Largest number of changed files that count."""
MAX_FILE_BYTES = 16 << 20
"""Largest file that is looked at, unless the repository itself has a larger one."""
MAX_DEPTH = 64
"""Largest number of directories above a file that counts."""

_ADD_OPTIONS = (
    "-c core.fsmonitor=false -c core.hooksPath=/dev/null -c core.bigFileThreshold=4m "
    "-c core.compression=1 -c core.excludesFile=/dev/null -c advice.addEmbeddedRepo=false"
)
_FILE_MODES = ("000000", "100644", "100755")


class Rejected(Exception):
    """The agent's result cannot be graded, by its own fault: score 0 with this reason."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason
        self.detail = detail


class ExtractionFailed(Exception):
    """The slot gave no listing; a control has to find out whose fault that is."""


@dataclass(frozen=True, slots=True)
class AgentPatch:
    """The changes of an agent that count, and the paths of those that do not."""

    data: bytes
    paths: tuple[str, ...]
    """Paths of the files that `data` changes."""
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartCommit:
    """What the agent began with, for a slot that has no history of its own."""

    commit: str
    pack: bytes
    """The commit's objects."""
    largest: int
    """Bytes of the largest file that is looked at."""


class Rules:
    """Decide which paths an agent may change.

    `start_files` exist when the agent begins; `top_level` are the distribution's import names;
    `hidden` are files that the graded tree has otherwise, such as those of a test patch.
    """

    def __init__(
        self,
        item: Item,
        start_files: frozenset[str],
        top_level: Sequence[str] = (),
        hidden: Collection[str] = (),
    ) -> None:
        self._files = start_files
        self._gold = frozenset(item.edited_files)
        self._tests = frozenset(item.test_files) | (frozenset(hidden) - self._gold)
        split = [path.rpartition("/") for path in start_files]
        self._packages = frozenset(path for path, _, name in split if name == "__init__.py")
        modules = frozenset(path for path in start_files if path.endswith(".py"))
        roots = sorted(_roots(item), key=len, reverse=True)
        tops = {top for path in self._gold & modules if (top := _top(path, roots))}
        for root in roots:
            tops |= {(root, name) for name in top_level}
        held = {top for path in modules if (top := _top(path, roots)) in tops}
        self._packages |= {root + name for root, name in held}
        """Packages, including namespace packages and those that a module becomes."""
        self._roots = frozenset(root for root, name in held if f"{root}{name}.py" in modules)
        """Import roots that directly contain modules."""

    def allow(self, change: Change) -> bool:
        """Whether this change counts: a regular file of the package, old or new."""
        path = change.path
        if change.new_mode not in _FILE_MODES or path in self._tests:
            return False
        if path in self._gold:
            return True
        if _PROTECTED.search(path):
            return False
        if path in self._files:
            return True
        if path.count("/") > MAX_DEPTH:
            return False
        return self._in_package(path) or self._beside_a_module(path)

    def _in_package(self, path: str) -> bool:
        while path:
            path = path.rpartition("/")[0]
            if path in self._packages:
                return True
        return False

    def _beside_a_module(self, path: str) -> bool:
        directory, slash, name = path.rpartition("/")
        module = name.removesuffix(".py")
        own = module != name and module not in _FOREIGN_MODULES
        return own and directory + slash in self._roots


def _roots(item: Item) -> list[str]:
    """The import roots as prefixes of paths."""
    return ["" if path == "." else f"{path}/" for path in item.environment.pythonpath]


def _top(path: str, roots: Sequence[str]) -> tuple[str, str] | None:
    """A module's import root, the longest that matches, and its top-level name."""
    for root in roots:
        if path.startswith(root):
            return root, path[len(root) :].partition("/")[0].removesuffix(".py")
    return None


def uncounted(packages: str) -> str:
    """What does not count although it may be honest work: a sentence for prompts.

    `packages` names what new files may belong to.
    """
    directories, modules = ", ".join(TEST_DIRECTORIES), ", ".join(TEST_MODULES)
    return (
        f"Not looked at are new files outside {packages}, links, compiled modules, the "
        "configuration of pytest or packaging, and tests, which is everything in directories named "
        f"{directories} and every module named {modules}. A patch of more than "
        f"{MAX_PATCH_BYTES >> 20} MB counts as no work."
    )


async def take_patch(context: SlotContext, item: Item, pinned: Pinned) -> AgentPatch:
    """The agent's changes to paths that count. The slot's workspace must not be used afterwards.

    Raises:
        Rejected: too large, or not what git would have written.
        ExtractionFailed: the slot's files could not be listed, or not in the time for all of it.
        SandboxError: the slot is gone.
        DeadlineExceeded: the stage has no time left.
    """
    listed = pinned.distribution.top_level if pinned.distribution else ()
    hidden = [each.path for each in await pinned.repository.changes(pinned.start, pinned.graded)]
    rules = Rules(item, await pinned.repository.files(pinned.start), listed, hidden)
    commit, pack = await pinned.repository.pack(pinned.start)
    largest = max(MAX_FILE_BYTES, await pinned.repository.largest(pinned.start))
    budget_s = min(TAKING_S, context.remaining_s() / TAKING_SHARE)
    try:
        async with asyncio.timeout(budget_s):
            patch = await _extract(context, pinned, rules, StartCommit(commit, pack, largest))
    except TimeoutError as error:
        raise ExtractionFailed(f"not done within {budget_s:.0f} s") from error
    if patch.data:
        await _check(pinned, rules, patch.data)
    return patch


async def _extract(
    context: SlotContext, pinned: Pinned, rules: Rules, start: StartCommit
) -> AgentPatch:
    """The patch as the slot's programs give it. They may be the agent's, and never end."""
    own = pinned.image.facts.others if pinned.image else frozenset()
    try:
        scratch = await scratch_directory(context)
        await context.write_file(f"{scratch}/start.pack", start.pack)
    except OSError as error:
        raise ExtractionFailed(str(error)) from error
    own_bytes = sum(len(os.fsencode(path)) + 1 for path in own)
    new = await _list_new(context, scratch, start, MAX_LISTING_BYTES + own_bytes)
    for path in own:
        new.pop(path, None)
    wanted = await asyncio.to_thread(_choose, rules, new, start.largest)
    raw = await _list_changes(context, scratch, start.commit, wanted)
    kept, dropped = await asyncio.to_thread(sort_changes, rules, raw)
    # Also names that git refuses to hold, such as `.GIT/x`.
    left = new.keys() - {change.path for change in kept} - {*dropped}
    dropped = tuple(sorted({*dropped, *left}))
    if not kept:
        return AgentPatch(b"", (), dropped)
    data = await _read_patch(context, scratch, start.commit, kept)
    return AgentPatch(data, tuple(change.path for change in kept), dropped)


def _choose(rules: Rules, new: Mapping[str, bool], largest: int) -> set[str]:
    """The new paths that count. Raises Rejected: they are too many, or one is too large."""
    wanted = {path for path in new if rules.allow(Change("100644", "", path))}
    if huge := sorted(path for path in wanted if new[path]):
        raise Rejected("too_large", f"{huge[0]!r} has more than {largest} bytes")
    if len(wanted) > MAX_CHANGES:
        raise Rejected("too_large", f"more than {MAX_CHANGES} new files")
    return wanted


def sort_changes(rules: Rules, raw: bytes) -> tuple[list[Change], tuple[str, ...]]:
    """The changes in the output of `git diff --raw -z` that count, and the paths of the others.

    Raises:
        Rejected: too many changes count, or `raw` is malformed.
    """
    try:
        changes = Change.parse(raw)
    except ValueError as error:
        raise Rejected("malformed", str(error)) from error
    kept = [change for change in changes if rules.allow(change)]
    if len(kept) > MAX_CHANGES:
        raise Rejected("too_large", f"more than {MAX_CHANGES} changed files")
    return kept, tuple(change.path for change in changes if not rules.allow(change))


_EXCLUDED = re.compile(r"(^|/)__pycache__/|\.pyc$")


async def _list_new(
    context: SlotContext, scratch: str, start: StartCommit, max_bytes: int
) -> dict[str, bool]:
    """Paths that the starting commit does not have -> whether the file is larger than `largest`.

    Files of the commit that have become so large are among them. No file is read: it may
    be endless, and most of what an agent leaves behind does not count.
    """
    # Delete the agent's own .git directories first: its settings, hooks and nested repositories
    # must not take part, and files of a nested repository count as files. Pipes and sockets go,
    # too: git gives up at one that has the name of a file of the commit.
    script = f"""set -eu
env -u GIT_DIR -u GIT_WORK_TREE -u GIT_INDEX_FILE git init --quiet --bare --template= "$GIT_DIR"
mkdir -p "$GIT_DIR/info"
echo {shlex.quote(ATTRIBUTES)} > "$GIT_DIR/info/attributes"
git index-pack --stdin < "$SCRATCH/start.pack" > /dev/null
chmod u+rwx "$GIT_WORK_TREE" || true
cd "$GIT_WORK_TREE"
find . -type d ! -perm -u+rwx -exec chmod u+rwx {{}} ';' \\
    -o -type f ! -perm -u+r -exec chmod u+rwX {{}} + || true
find . -name .git -prune -exec rm -rf -- {{}} +
find . ! -type f ! -type d ! -type l -exec rm -f -- {{}} +
find . -type f -size +{start.largest}c -print0 > "$SCRATCH/huge"
git read-tree {start.commit}
git update-index --force-remove -z --stdin < "$SCRATCH/huge"
git ls-files --others -z > "$SCRATCH/others"
cat "$SCRATCH/huge" "$SCRATCH/others" > "$SCRATCH/new"
"""
    listed = await _output_of(script, context, scratch, "new", max_bytes)
    paths = [os.fsdecode(path) for path in listed.split(b"\0") if path]
    found = {path.removeprefix("./"): path.startswith("./") for path in reversed(paths)}
    return {path: huge for path, huge in found.items() if not _EXCLUDED.search(path)}


async def _list_changes(
    context: SlotContext, scratch: str, commit: str, wanted: Collection[str]
) -> bytes:
    """The differences of the commit's files and of `wanted`, as `git diff --raw -z` lists them."""
    script = f"""set -eu
cp -- "$SCRATCH/new.index" "$GIT_INDEX_FILE"
cd "$GIT_WORK_TREE"
git {_ADD_OPTIONS} add -u -- .
git {_ADD_OPTIONS} update-index --add -z --stdin
git diff-index --cached --raw -z --no-renames --no-abbrev {commit} > "$SCRATCH/changes"
"""
    names = b"".join(os.fsencode(path) + b"\0" for path in sorted(wanted))
    return await _output_of(script, context, scratch, "changes", MAX_LISTING_BYTES, stdin=names)


async def _read_patch(
    context: SlotContext, scratch: str, commit: str, kept: Sequence[Change]
) -> bytes:
    # Deletions first: a directory may have replaced a file.
    entries = b"".join(
        f"{'0' if change.new_mode == '000000' else change.new_mode} {change.oid}\t".encode()
        + os.fsencode(change.path)
        + b"\0"
        for change in sorted(kept, key=lambda change: change.new_mode != "000000")
    )
    script = f"""set -eu
git read-tree {commit}
git update-index -z --index-info
git diff-index --cached -p --binary --full-index --no-renames --no-ext-diff --no-textconv \\
    --no-color {commit} > "$SCRATCH/patch"
"""
    return await _output_of(script, context, scratch, "patch", MAX_PATCH_BYTES, stdin=entries)


async def _output_of(
    script: str, context: SlotContext, scratch: str, name: str, max_bytes: int, stdin: bytes = b""
) -> bytes:
    """Run git in the slot, and read the file called `name` that the script writes."""
    environment = {
        **GIT_ENV,
        "SCRATCH": scratch,
        "HOME": scratch,
        "GIT_DIR": f"{scratch}/repository.git",
        "GIT_WORK_TREE": context.workspace,
        "GIT_INDEX_FILE": f"{scratch}/{name}.index",
    }
    try:
        result = await context.run(
            script, stdin=stdin, env=environment, cwd="/", timeout_s=TAKING_S
        )
        if not result.ok:
            raise ExtractionFailed("timed out" if result.timed_out else result.output[-500:])
        return await context.read_file(f"{scratch}/{name}", max_bytes=max_bytes)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise Rejected("too_large", f"{name}: more than {max_bytes} bytes") from error
        raise ExtractionFailed(str(error)) from error


async def _check(pinned: Pinned, rules: Rules, patch: bytes) -> None:
    """Check the patch itself against the rules, independently of the slot's listing."""
    tree = await pinned.repository.apply(pinned.start, patch)
    if tree is None:
        raise Rejected("malformed", "the patch does not apply to the starting commit")
    try:
        changes = await pinned.repository.changes(pinned.start, tree)
    except (GitError, ValueError) as error:
        raise Rejected("malformed", str(error)) from error
    foreign = [change.path for change in changes if not rules.allow(change)]
    if foreign:
        raise Rejected("malformed", f"the patch touches {foreign[0]!r}, which was not listed")
