"""What slots of a row's image must not hold: the fix, and hidden tests, wherever they have copies.

An image has more than the commit on which work begins: builds of the package, compiled modules,
clones, other releases that something else of the image needs, archives in the caches of pip and
conda. Agents could read them, and their code could while
it is graded; so they are gone from every slot of the row. Later commits go with the image's own
.git.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files

from envs.swe.images.facts import ImageFacts
from envs.swe.images.notes import ImageNote
from envs.swe.images.source import ImageSource
from envs.swe.repository import Repository
from envs.swe.workspace import GIT_ENV, Pinned
from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.context import SlotContext

RULES = "2"
"""Rises when more is concealed."""
SEARCH_TIMEOUT_S = 600.0
LEAST_BLOB_BYTES = 100
"""Smaller files are alike by chance, e.g. empty `__init__.py`."""
MAX_PLACES = 10_000
MAX_OUTPUT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for."""

    package: str
    """The distribution under test."""
    copies: Mapping[str, tuple[str, ...]]
    """File name -> ids of the blobs that must not be found."""
    edited: Mapping[str, str]
    """Path of a file that the fix edits -> id of its blob before that; zeros: there is none."""


async def wanted(pinned: Pinned, package: str) -> Wanted:
    """What slots of a row must not hold."""
    repository, start, solved = pinned.repository, pinned.start, await pinned.solved()
    copies = await _copies(repository, start, pinned.graded, pinned.fixed, solved)
    changes = [
        each for tree in (pinned.fixed, solved) for each in await repository.changes(tree, start)
    ]
    edited = {each.path: each.oid for each in changes if each.path.isprintable()}
    return Wanted(package, copies, dict(sorted(edited.items())))


async def _copies(repository: Repository, start: str, *trees: str) -> Mapping[str, tuple[str, ...]]:
    """The files that `trees` have and that `start` lacks or has otherwise."""
    found: dict[str, set[str]] = {}
    for tree in trees:
        for change in await repository.changes(start, tree):
            if change.new_mode.startswith("100"):
                found.setdefault(change.path.rpartition("/")[2], set()).add(change.oid)
    wanted = sorted({blob for blobs in found.values() for blob in blobs})
    listing = await repository.git(
        "cat-file", "--batch-check=%(objectname) %(objectsize)", stdin="\n".join(wanted).encode()
    )
    sizes = dict(line.split(" ") for line in listing.decode().splitlines())
    long = {blob for blob, size in sizes.items() if int(size) >= LEAST_BLOB_BYTES}
    kept = {name: tuple(sorted(blobs & long)) for name, blobs in sorted(found.items())}
    return {name: blobs for name, blobs in kept.items() if blobs or name.endswith(".py")}


def _note(facts: ImageFacts, source: ImageSource, sought: Wanted) -> ImageNote:
    """The places that hold copies."""
    decides = [RULES, source.workdir, sought.package, sought.copies, sought.edited]
    return ImageNote(facts, "concealed", decides)


async def known_places(
    facts: ImageFacts, source: ImageSource, sought: Wanted
) -> tuple[str, ...] | None:
    """The places that hold copies; None: nobody has searched this image for them on this host."""
    return await _note(facts, source, sought).read()


async def find_places(
    facts: ImageFacts, source: ImageSource, sought: Wanted, context: SlotContext
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
        timeout_s=SEARCH_TIMEOUT_S,
        max_output_bytes=MAX_OUTPUT_BYTES,
        user="0",
    )
    try:
        if not result.ok or result.truncated:
            raise ValueError(result.output[-300:])
        found = tuple(str(path) for path in json.loads(result.stdout))
    except (ValueError, TypeError, RecursionError) as error:
        raise SandboxError(f"the image could not be searched for copies: {error}") from error
    if len(found) > MAX_PLACES or not all(path.startswith("/") and len(path) > 1 for path in found):
        raise SandboxError(f"the image has {len(found)} copies of what the row is about")
    await _note(facts, source, sought).write(found)
    return found
