"""The trees of a row with an image, and what its slots conceal.

No slot may hold the fix or hidden tests, wherever the image has copies. An image has more than the
commit on which work begins: builds of the package, compiled modules, clones, other releases that
something else of the image needs, archives in the caches of pip and conda. Agents could read them,
and their code could while it is graded; so they are gone from every slot of the row. Later commits
go with the image's own .git.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files

from envs.swe.images.facts import ImageFacts, known_facts, read_facts
from envs.swe.images.node_ids import with_node_ids
from envs.swe.images.notes import ImageNote
from envs.swe.images.source import ImageSource
from envs.swe.images.workplace import ImagePlace
from envs.swe.item import Item
from envs.swe.package.distribution import describe
from envs.swe.repository import Repository
from envs.swe.workspace import GIT_ENV, Pinned, without_hidden_files
from hermes_queue.errors import EnvBug, SandboxError
from hermes_queue.sandbox.context import SlotContext

_RULES = "2"
"""Rises when more is concealed."""
_SEARCH_TIMEOUT_S = 600.0
_LEAST_BLOB_BYTES = 100
"""Smaller files are alike by chance, e.g. empty `__init__.py`."""
_MAX_PLACES = 10_000
_MAX_OUTPUT_BYTES = 8 << 20


async def pin_image(item: Item, source: ImageSource, context: SlotContext) -> Pinned:
    """Everything the row pins, from a fresh slot of its image unless this host has read it before.

    Raises:
        EnvBug: the row does not fit its image; the message names the field.
        SandboxError: the slot could not answer.
    """
    pinned = await known_pin(item, source, context.slot.image or "")
    if pinned is not None:
        return pinned
    facts = await read_facts(source, context)
    bare = await _pin(item, source, facts)
    sought = await _wanted(bare, item.package_name)
    places = await _known_places(facts, source, sought)
    if places is None:
        places = await _find_places(facts, source, sought, context)
    return replace(bare, image=ImagePlace(source, facts, places))


async def known_pin(item: Item, source: ImageSource, image: str) -> Pinned | None:
    """The same for the image that a slot describes as `image`, without a slot.

    None: this host has not read it yet. Raises EnvBug.
    """
    facts = await known_facts(source, image)
    if facts is None:
        return None
    bare = await _pin(item, source, facts)
    sought = await _wanted(bare, item.package_name)
    places = await _known_places(facts, source, sought)
    return None if places is None else replace(bare, image=ImagePlace(source, facts, places))


async def _pin(item: Item, source: ImageSource, facts: ImageFacts) -> Pinned:
    repository, patch = facts.repository, _whole_lines(str(item.patch))
    broken, fix = await _broken(repository, source, facts.tree, patch)
    graded = broken
    if facts.tests_tree is not None:
        graded = await _with_tests(repository, broken, facts)
    if item.test_patch:
        patched = await repository.apply(graded, _whole_lines(item.test_patch))
        if patched is None:
            raise EnvBug("test_patch: it does not apply to the image's files")
        graded = patched
    item = await with_node_ids(item, facts, graded)
    start = broken
    if facts.tests_tree is None:
        start = await without_hidden_files(repository, broken, graded, item)
    fixed = await repository.apply(start, fix, exclude=item.hidden_files)
    if fixed in (None, start):
        raise EnvBug("patch: it changes only files that hold FAIL_TO_PASS tests")
    version = (item.model_extra or {}).get("version")
    own = await describe(repository, graded, item.environment, item.source, version)
    return Pinned(repository, start, graded, str(fixed), own)


def _whole_lines(patch: str) -> bytes:
    """The patch with the last line's end, which tables have lost and git asks for."""
    return (patch if patch.endswith("\n") else patch + "\n").encode()


async def _broken(
    repository: Repository, source: ImageSource, tree: str, patch: bytes
) -> tuple[str, bytes]:
    """The image's files with the bug, and the fix as a patch on them."""
    applied = await repository.apply(tree, patch)
    if applied is not None:
        if source.patch == "fix":
            return tree, patch
        return applied, await repository.diff(applied, tree)
    undone = await repository.apply(tree, patch, reverse=True)
    if source.patch == "bug" and undone is not None:  # the image has the bug already
        return tree, await repository.diff(tree, undone)
    hint = "; it is there already: is it the bug (source.patch)?" if undone else ""
    raise EnvBug(f"patch: it does not apply to the files of {source.reference}{hint}")


async def _with_tests(repository: Repository, tree: str, facts: ImageFacts) -> str:
    """The tree with the hidden tests of the image."""
    added = await repository.diff(facts.tree, str(facts.tests_tree))
    both = await repository.apply(tree, added)
    if both is None:
        raise EnvBug("source.tests: the hidden tests do not fit into the repository")
    return both


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is looked for."""

    package: str
    """The distribution under test."""
    copies: Mapping[str, tuple[str, ...]]
    """File name -> ids of the blobs that must not be found."""
    edited: Mapping[str, str]
    """Path of a file that the fix edits -> id of its blob before that; zeros: there is none."""


async def _wanted(pinned: Pinned, package: str) -> _Wanted:
    """What slots of a row must not hold."""
    repository, start, solved = pinned.repository, pinned.start, await pinned.solved()
    copies = await _copies(repository, start, pinned.graded, pinned.fixed, solved)
    changes = [
        each for tree in (pinned.fixed, solved) for each in await repository.changes(tree, start)
    ]
    edited = {each.path: each.oid for each in changes if each.path.isprintable()}
    return _Wanted(package, copies, dict(sorted(edited.items())))


async def _copies(repository: Repository, start: str, *trees: str) -> Mapping[str, tuple[str, ...]]:
    """The files that `trees` have and that `start` lacks or has otherwise."""
    found: dict[str, set[str]] = {}
    for tree in trees:
        for change in await repository.changes(start, tree):
            if change.new_mode.startswith("100"):
                found.setdefault(change.path.rpartition("/")[2], set()).add(change.oid)
    sought = sorted({blob for blobs in found.values() for blob in blobs})
    listing = await repository.git(
        "cat-file", "--batch-check=%(objectname) %(objectsize)", stdin="\n".join(sought).encode()
    )
    sizes = dict(line.split(" ") for line in listing.decode().splitlines())
    long = {blob for blob, size in sizes.items() if int(size) >= _LEAST_BLOB_BYTES}
    kept = {name: tuple(sorted(blobs & long)) for name, blobs in sorted(found.items())}
    return {name: blobs for name, blobs in kept.items() if blobs or name.endswith(".py")}


def _note(facts: ImageFacts, source: ImageSource, sought: _Wanted) -> ImageNote:
    """The places that hold copies."""
    decides = [_RULES, source.workdir, sought.package, sought.copies, sought.edited]
    return ImageNote(facts, "concealed", decides)


async def _known_places(
    facts: ImageFacts, source: ImageSource, sought: _Wanted
) -> tuple[str, ...] | None:
    """The places that hold copies; None: nobody has searched this image for them on this host."""
    return await _note(facts, source, sought).read()


async def _find_places(
    facts: ImageFacts, source: ImageSource, sought: _Wanted, context: SlotContext
) -> tuple[str, ...]:
    """Search the slot, which must be fresh, for the copies.

    Raises:
        SandboxError: it could not be searched.
    """
    script = files("envs.swe.images.slot").joinpath("conceal.py").read_text()
    job = {"workdir": source.workdir, **asdict(sought)}
    result = await context.run(
        f'exec "$PYTHON" -I -B -c {shlex.quote(script)}',
        stdin=json.dumps(job).encode(),
        env={**GIT_ENV, "PYTHON": facts.python},
        cwd="/",
        timeout_s=_SEARCH_TIMEOUT_S,
        max_output_bytes=_MAX_OUTPUT_BYTES,
        user="0",
    )
    try:
        if not result.ok or result.truncated:
            raise ValueError(result.output[-300:])
        found = tuple(str(path) for path in json.loads(result.stdout))
    except (ValueError, TypeError, RecursionError) as error:
        raise SandboxError(f"the image could not be searched for copies: {error}") from error
    if len(found) > _MAX_PLACES or not all(
        path.startswith("/") and len(path) > 1 for path in found
    ):
        raise SandboxError(f"the image has {len(found)} copies of what the row is about")
    await _note(facts, source, sought).write(found)
    return found
