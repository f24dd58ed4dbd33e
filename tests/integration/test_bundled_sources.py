"""The bundled rows against the sdists they pin, fetched from the package index."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import producers
from envs.base import ReadAsset
from envs.swe.item import Item
from envs.swe.workspace import Pinned, pin
from hermes_queue.sandbox.base import AssetSpec, SlotSpec
from hermes_queue.sandbox.local.backend import LocalBackend
from tools.make_bugs.statement import quotes
from tools.make_bugs.validate import changed_lines

FILE = Path(producers.__file__).parent / "data" / "swe_smith.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text().splitlines()]
LONG_ENOUGH = 20
"""Characters from which on a line of code is no accident in prose."""

pytestmark = [
    pytest.mark.parametrize("row", ROWS, ids=[row["instance_id"] for row in ROWS]),
]


@pytest.fixture
async def read_asset() -> AsyncIterator[ReadAsset]:
    """How the worker gets at sdists; they stay in its cache."""
    backend = LocalBackend(slots=1)
    await backend.start()

    async def read(asset: AssetSpec, path: str) -> bytes:
        await backend.prepare(SlotSpec(assets=(asset,), python=asset.python))
        return await backend.read_asset(asset, path)

    yield read
    await backend.stop()


async def python_lines(pinned: Pinned) -> set[str]:
    """Every long line of Python in the graded tree, tests included."""
    read = pinned.repository.read
    paths = [p for p in await pinned.repository.files(pinned.graded) if p.endswith(".py")]
    texts = [(await read(pinned.graded, path)).decode(errors="replace") for path in paths]
    lines = {line.strip() for text in texts for line in text.splitlines()}
    return {line for line in lines if len(line) >= LONG_ENOUGH and " " in line}


async def test_a_row_fits_its_sdist_and_quotes_none_of_it(
    row: dict[str, Any], read_asset: ReadAsset
) -> None:
    item = Item.model_validate(row)
    pinned = await pin(item, read_asset)
    assert item.mutation is not None
    [part] = item.mutation.files
    assert (
        await pinned.repository.commit(
            pinned.graded, f"Bug: {item.instance_id}", [str(item.clean_commit)]
        )
        == item.base_commit
    )
    before = await pinned.repository.read(str(item.clean_commit), part.file)
    after = await pinned.repository.read(pinned.graded, part.file)
    assert not quotes(item.problem_statement, {x.strip() for x in changed_lines(before, after)})
    assert not quotes(item.problem_statement, await python_lines(pinned))
