"""A group with its steps aligned, and the tokens of a trajectory, in a terminal."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from hermes_plugins.view import present
from hermes_plugins.view.compare import compare
from hermes_plugins.view.terminal.trajectory import mark

_HEADING = [
    "",
    "#",
    "SCORE",
    "REASON",
    "STOP",
    "TURNS",
    "TOKENS",
    "COST",
    "PATCH",
    "ALIKE",
    "PARTS",
]
_COLUMN_MOST = 60
_STEP_MOST = 100
_UNLIKELY = ((-1.0, ""), (-3.0, "yellow"), (-math.inf, "bold red"))
"""Styles of trained tokens by the logprob down to which they hold."""


def group(records: Sequence[Mapping[Any, Any]]) -> Iterator[RenderableType]:
    """The samples of a group in a table, and below it what they did, step by step."""
    found = compare(records)
    rows: list[list[str | Text]] = [list(_HEADING)]
    for raw, sample in zip(records, found["samples"], strict=False):
        sign, style = mark(raw)
        is_reference = len(rows) - 1 == found["reference"]
        patch = _patch(sample["patch"], found["samples"])
        rows.append([Text(sign, style=style), *_sample(sample, patch, is_reference=is_reference)])
    yield _table(rows, right={1, 2, 5, 6, 7})
    if found["left_out"]:
        yield Text(f"{found['left_out']} more samples are not compared", style="dim")
    if found["rows"]:
        yield Rule(Text("what they did", style="bold"), align="left", style="dim")
        yield from _steps(found)
    if found["tests"]["rows"]:
        yield Rule(Text("tests that a sample failed", style="bold"), align="left", style="dim")
        yield from _tests(found)


def _patch(patch: Mapping[str, Any] | None, samples: Sequence[Mapping[str, Any]]) -> str:
    if not patch:
        return ""
    if not patch["bytes"]:
        return "empty"
    if patch["like"] is not None:
        return f"like #{samples[patch['like']]['sample']}"
    return ", ".join(patch["files"][:2]) + (" …" if len(patch["files"]) > 2 else "")


def _sample(sample: Mapping[str, Any], patch: str, *, is_reference: bool) -> list[str]:
    score, parting = sample["score"], sample["parting"]
    parts = "reference" if is_reference else ""
    if parting:
        what = "token" if parting["by"] == "ids" else "message"
        parts = "nowhere" if parting["at"] is None else f"{what} {parting['at']}"
    return [
        "" if sample["sample"] is None else str(sample["sample"]),
        "-" if score is None else f"{score:g}",
        sample["reason"],
        sample["stop_reason"] or sample["status"],
        str(sample["turns"]),
        str(sample["completion_tokens"] or 0),
        "" if sample["cost"] is None else f"${sample['cost']:.3g}",
        patch,
        f"{sample['shared']} of {sample['steps']} steps",
        parts,
    ]


def _steps(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """A line for each step: a dot for each sample that did it, where it occurs, and what it is."""
    folded = {first: last for first, last in found["folds"]}
    hidden = -1
    for place, row in enumerate(found["rows"]):
        if place <= hidden:
            continue
        line = Text("".join("·" if at is None else "●" for at in row["messages"]))
        what = f"{row['name']} {row['argument'][:_STEP_MOST]}"
        if place in folded:
            hidden = folded[place]
            line.append(f"  {hidden - place + 1} steps that all did, from {what}", style="dim")
        elif None in row["messages"]:
            line.append(f"  {row['passing']}✓ {row['failing']}✗  ", style="dim")
            line.append(what, style="" if row["reference"] else "yellow")
        else:
            line.append(f"  {what}", style="dim")
        yield line
    if found["rows_left_out"]:
        yield Text(f"… {found['rows_left_out']} more steps", style="dim")


def _tests(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    for row in found["tests"]["rows"]:
        line = Text()
        for cell in row["cells"]:
            sign, style = {None: ("·", "dim"), "passed": ("✓", "green")}.get(cell, ("✗", "red"))
            line.append(sign, style=style)
        yield line.append(f"  {row['test']}")
    if found["tests"]["left_out"]:
        yield Text(f"… {found['tests']['left_out']} more tests", style="dim")
    yield Text("· not reported", style="dim")


def tokens(
    raw: Mapping[Any, Any], decoder: present.Decoder | None = None
) -> Iterator[RenderableType]:
    """The training sequences turn by turn, and with a tokenizer their text.

    In the text, context is dim, and trained tokens stand out the more unlikely they were.
    """
    sequences = present.sequences(raw)
    if not sequences:
        yield Text("no token ids: the server returned none, or the agent called no model")
    for each in sequences:
        title = f"sequence {each['n']}: {each['ids']} ids, {each['trained']} trained"
        if each["mean_logprob"] is not None:
            title += f", logprob mean {each['mean_logprob']:.3f} min {each['min_logprob']:.3f}"
        branch = f", branch {each['branch']}" if each["branch"] else ""
        yield Rule(Text(title + branch, style="bold"), align="left", style="dim")
        octets = present.tokens(raw, each["n"]) or b""
        count = len(octets) // 9
        logprobs = struct.unpack(f"<{count}f", octets[5 * count :])
        turns = present.sequence_turns(raw, each["n"])
        yield _turns(turns, logprobs)
        if decoder is not None:
            ids = struct.unpack(f"<{count}i", octets[: 4 * count])
            yield _text(decoder, ids, octets[4 * count : 5 * count], logprobs)


def _turns(turns: Sequence[Any], logprobs: Sequence[float]) -> Table:
    rows: list[list[str | Text]] = [
        ["TURN", "FROM", "IDS", "TRAINED", "POLICY", "MEAN", "MIN"],
    ]
    for turn in turns:
        own = logprobs[turn["start"] : turn["start"] + turn["length"]]
        known = [value for value in own if math.isfinite(value)] if turn["trained"] else []
        rows.append(
            [
                "?" if turn["turn"] is None else str(turn["turn"] + 1),
                str(turn["start"]),
                str(turn["length"]),
                "yes" if turn["trained"] else "no",
                turn["policy"] or "-",
                f"{sum(known) / len(known):.3f}" if known else "-",
                f"{min(known):.3f}" if known else "-",
            ]
        )
    return _table(rows, right={0, 1, 2, 5, 6})


def _text(
    decoder: present.Decoder, ids: Sequence[int], mask: bytes, logprobs: Sequence[float]
) -> Text:
    made = Text()
    at = 0
    for piece, count in decoder.pieces(ids):
        trained = mask[at] if at < len(mask) else 0
        least = min(logprobs[at : at + count], default=0.0)
        style = next((name for bound, name in _UNLIKELY if least > bound), "bold red")
        made.append(piece, style=style if trained else "dim")
        at += count
    return made


def _table(rows: Sequence[Sequence[str | Text]], right: set[int]) -> Table:
    """Rows with a heading, in columns as wide as their widest cell."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column, name in enumerate(rows[0]):
        width = max(cell_len(str(row[column])) for row in rows)
        made.add_column(
            name,
            justify="right" if column in right else "left",
            no_wrap=True,
            min_width=min(width, _COLUMN_MOST),
        )
    for row in rows[1:]:
        made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return made
