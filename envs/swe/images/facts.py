"""An image's repository, read from a fresh slot of it and kept on the worker, once per host.

The image is trusted as far as its row is: it decides what the task is. What is read lies beside the
other trusted repositories, so that patches are applied and checked in the worker.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from envs.swe.images.source import PROGRAMS, ImageSource
from envs.swe.repository import GitError, Repository, locked
from envs.swe.workspace import ATTRIBUTES, GIT_ENV, scratch_directory
from hermes_queue.errors import EnvBug, SandboxError
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.settings import PathSettings, private_directory

RULES = "1"
"""Rises when the same image is read differently."""
READ_TIMEOUT_S = 600.0
MAX_PACK_BYTES = 512 << 20
MAX_LISTING_BYTES = 64 << 20
MAX_COMMAND_BYTES = 64 << 10
REFUSED = 3
"""Exit code of read.sh for an image that does not fit the row."""
_FACTS = "facts.json"
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,99}")


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What a worker knows of an image."""

    repository: Repository
    tree: str
    """The files that git tracks there, as they are."""
    tests_tree: str | None
    """The same with the hidden tests as `r2e_tests`."""
    others: frozenset[str]
    """All other files of the repository's directory: builds, caches, data."""
    gits: tuple[str, ...]
    """Git directories below it."""
    python: str
    tag: str
    """The last tag before its commit: packages make their version of it. May be empty."""
    command: str
    """R2E-Gym's run_tests.sh, else empty."""


def _place(source: ImageSource, image: str) -> Path:
    words = (RULES, image, source.workdir, source.tests or "", source.python or "", _needed(source))
    digest = hashlib.sha256("\0".join(words).encode()).hexdigest()
    return private_directory(PathSettings().cache / "repos" / "image") / f"{digest[:32]}.git"


def _needed(source: ImageSource) -> str:
    """The module that the interpreter must have; all have unittest."""
    return "pytest" if source.runner == "pytest" else "unittest"


async def known_facts(source: ImageSource, image: str) -> ImageFacts | None:
    """The facts of the image that a slot describes as `image`; None: not read on this host yet."""
    return await asyncio.to_thread(_load, _place(source, image))


async def read_facts(source: ImageSource, context: SlotContext) -> ImageFacts:
    """The facts of the image of this slot, which must be fresh; its repository is spoilt then.

    Raises:
        EnvBug: the image does not fit the row; the message says how.
        SandboxError: the slot could not answer.
    """
    place = _place(source, context.slot.image or "")
    async with locked(place.with_suffix(".lock")):
        if (known := await asyncio.to_thread(_load, place)) is not None:
            return known
        draft = Path(tempfile.mkdtemp(prefix="new-", dir=place.parent))
        try:
            await _read(source, context, draft / "repo.git")
            await asyncio.to_thread(_move, draft / "repo.git", place)
        finally:
            await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)
    found = await asyncio.to_thread(_load, place)
    if found is None:
        raise SandboxError(f"what was read of the image is not in the cache any more: {place}")
    return found


def _load(place: Path) -> ImageFacts | None:
    try:
        kept = json.loads((place / _FACTS).read_bytes())
        kept["others"] = frozenset(kept["others"])
        kept["gits"] = tuple(kept["gits"])
        return ImageFacts(repository=Repository(place), **kept)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _move(draft: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)  # of an older version of this module
    draft.rename(place)


async def _read(source: ImageSource, context: SlotContext, path: Path) -> None:
    try:
        scratch = await scratch_directory(context)
        answers = await _run(source, context, scratch)
        pack = await context.read_file(f"{scratch}/pack", max_bytes=MAX_PACK_BYTES)
        listed = await context.read_file(f"{scratch}/files", max_bytes=MAX_LISTING_BYTES)
        gits = await context.read_file(f"{scratch}/gits", max_bytes=MAX_LISTING_BYTES)
        command = b""
        if source.tests:
            command = await context.read_file(f"{scratch}/command", max_bytes=MAX_COMMAND_BYTES)
    except TimeoutError as error:
        raise SandboxError(f"the image's repository could not be read: {error}") from error
    except OSError as error:
        raise EnvBug(f"source.reference: the image's repository is too large: {error}") from error
    repository = await Repository.create(path)
    try:
        await repository.git("index-pack", "--stdin", stdin=pack, timeout_s=READ_TIMEOUT_S)
        tree = await _tree(repository, answers["commit"], "image")
        tests = await _tree(repository, answers["tests"], "tests") if source.tests else None
        tracked = await repository.files(tree)
    except (GitError, KeyError) as error:
        raise EnvBug(f"source.reference: the image's repository is broken: {error}") from error
    tag = answers.get("tag", "")
    kept = {
        "tree": tree,
        "tests_tree": tests,
        "others": sorted(_paths(listed) - tracked),
        "gits": sorted(_paths(gits)),
        "python": answers.get("python", ""),
        "tag": tag if _TAG.fullmatch(tag) and ".." not in tag else "",
        "command": command.decode(errors="replace"),
    }
    (path / _FACTS).write_text(json.dumps(kept))


async def _run(source: ImageSource, context: SlotContext, scratch: str) -> dict[str, str]:
    """Run read.sh; returns the values that it prints."""
    usual = [f"{place.format(workdir=source.workdir)}/python" for place in PROGRAMS]
    script = files("envs.swe.images.slot").joinpath("read.sh").read_text()
    environment = {
        **GIT_ENV,
        "WORKDIR": source.workdir,
        "SCRATCH": scratch,
        "TESTS": source.tests or "",
        "ATTRIBUTES": ATTRIBUTES,
        "NEEDED": _needed(source),
        "PYTHONS": source.python or ":".join([*usual, "python", "python3"]),
        "PATH": source.path,
    }
    result = await context.run(script, cwd="/", env=environment, timeout_s=READ_TIMEOUT_S)
    lines = result.stdout.decode(errors="replace").splitlines()
    answers = dict(line.split("=", 1) for line in lines if "=" in line)
    if result.exit_code == REFUSED and "refused" in answers:
        raise EnvBug(f"{source.reference}: {answers['refused']}")
    if not result.ok:
        how = "took too long" if result.timed_out else f"ended with {result.exit_code}"
        raise SandboxError(f"reading the image's repository {how}: {result.output[-500:]}")
    return answers


async def _tree(repository: Repository, commit: str, name: str) -> str:
    """The tree of a commit without its submodules, kept under a reference."""
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise GitError(f"{commit[:50]!r} is no commit")
    tree = await repository.resolve(f"{commit}^{{tree}}")
    listing = await repository.git("ls-tree", "-r", "-z", tree)
    modules = {
        os.fsdecode(path): None
        for meta, _, path in (line.partition(b"\t") for line in listing.split(b"\0")[:-1])
        if meta.startswith(b"160000")
    }
    if modules:
        tree = await repository.replace(tree, modules)
    kept = await repository.commit(tree, name)
    await repository.git("update-ref", f"refs/hq/{name}", kept)
    return tree


def _paths(listing: bytes) -> set[str]:
    return {os.fsdecode(path).removeprefix("./") for path in listing.split(b"\0") if path}
