"""The trees of a row with an image, and what its slots conceal."""

from __future__ import annotations

from dataclasses import replace

from envs.swe.images import concealed
from envs.swe.images.facts import ImageFacts, known_facts, read_facts
from envs.swe.images.node_ids import with_node_ids
from envs.swe.images.source import ImageSource
from envs.swe.images.workplace import ImagePlace
from envs.swe.item import Item
from envs.swe.package.distribution import describe
from envs.swe.repository import Repository
from envs.swe.workspace import Pinned, without_hidden_files
from hermes_queue.errors import EnvBug
from hermes_queue.sandbox.context import SlotContext


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
    sought = await concealed.wanted(bare, item.package_name)
    places = await concealed.known_places(facts, source, sought)
    if places is None:
        places = await concealed.find_places(facts, source, sought, context)
    return replace(bare, image=ImagePlace(source, facts, places))


async def known_pin(item: Item, source: ImageSource, image: str) -> Pinned | None:
    """The same for the image that a slot describes as `image`, without a slot.

    None: this host has not read it yet. Raises EnvBug.
    """
    facts = await known_facts(source, image)
    if facts is None:
        return None
    bare = await _pin(item, source, facts)
    sought = await concealed.wanted(bare, item.package_name)
    places = await concealed.known_places(facts, source, sought)
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
