"""The goals of the viewer beside what was measured: as text, and as a table in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT

PAGE = ROOT / "docs" / "measurements.md"
MARKS = ("<!-- bench-view: made by `make bench-view` -->", "<!-- /bench-view -->")
KB, MB = 1e3, 1e6
LISTS = ("list, first page", "list, behind row 90,000", "list, by cost", "list, filtered")
SORTED = ("first_page_ms", "page_at_", "sort_", "filter_")
"""Queries of `view_index` that make a page of a list."""
AS_TOP = 1.1
"""Times the commands of one `top` that 20 viewers may cost."""
AS_FAST = 0.95
"""Times the rate without viewers, in the median of the rounds."""


@dataclass(frozen=True)
class Goal:
    """One row."""

    what: str
    bound: float
    unit: str
    ours: Sequence[float]
    """Of each round; empty: not measured."""
    inspect: Sequence[float] = ()
    at_least: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median meets it; None = not measured."""
        if not self.ours:
            return None
        middle = statistics.median(self.ours)
        return middle >= self.bound if self.at_least else middle <= self.bound

    def cells(self) -> list[str]:
        """What, goal, ours, Inspect's, met."""
        sign = "≥" if self.at_least else "≤"
        bound = f"{sign} {short(self.bound)} {self.unit}".strip()
        told = {True: "yes", False: "**no**", None: "not measured"}[self.met]
        ours = f"{told_of(self.ours)}{f' ({self.note})' if self.note else ''}"
        return [self.what, bound, ours, told_of(self.inspect), told]


def short(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def told_of(values: Sequence[float]) -> str:
    """Median, and the smallest and largest one."""
    if not values:
        return "-"
    middle, least, most = statistics.median(values), min(values), max(values)
    return short(middle) if least == most else f"{short(middle)} ({short(least)} to {short(most)})"


def goals(found: Mapping[str, Any]) -> Iterator[Goal]:
    """All of section "Goals" of the viewer, with what `found` says of them."""
    yield from _of_pages(found)
    served, index = found["served"], found["index"]
    theirs = found["inspect"]
    yield Goal("group of 16 x 100 turns compared: server's CPU", 1, "s", [served["cpu_s"]])
    resident = [theirs["resident_mb"]] if "resident_mb" in theirs else []
    yield Goal("server's memory with 100,000 rows, at its most", 120, "MB",
               [served["most_mb"]], resident)  # fmt: skip
    yield Goal("commands of Redis in 20 s: nobody looks", 0, "", [served["nobody"]])
    many, one = served["lookers"], served["top"]
    yield Goal("commands of Redis: 20 look, against one `top`", AS_TOP, "x", [many / one],
               note=f"{short(many)} against {short(one)}")  # fmt: skip
    for name in ("archive", "JSON lines"):
        rate = index[f"read {name} of large records"]["rows_per_cpu_s"]
        yield Goal(f"index: records of 75 KB a CPU second, {name}", 300, "", [rate], at_least=True)
    restart = index["restart, nothing new"]
    yield Goal("index: restart with nothing new, wall", 1, "s", [restart["wall_s"]],
               note=f"{short(restart['cpu_s'])} s CPU")  # fmt: skip
    yield from _of_run(found["running"])


def _of_pages(found: Mapping[str, Any]) -> Iterator[Goal]:
    def ours(page: str, figure: str, unit: float = 1) -> list[float]:
        return [each[figure] / unit for each in found["pages"].get(page, {}).get("ours", ())]

    def theirs(page: str, figure: str, unit: float = 1) -> list[float]:
        return [each[figure] / unit for each in found["pages"].get(page, {}).get("inspect", ())]

    def both(what: str, bound: float, unit: str, page: str, figure: str, by: float = 1) -> Goal:
        return Goal(what, bound, unit, ours(page, figure, by), theirs(page, figure, by))

    def worst(figure: str, unit: float = 1) -> list[float]:
        return [
            max(each) for each in zip(*(ours(page, figure, unit) for page in LISTS), strict=True)
        ]

    yield both("first page: code", 120, "KB", "first page", "code_bytes", KB)
    yield both("first page: requests, with data and events", 14, "", "first page", "requests")
    yield both("first page: CPU", 0.3, "s", "first page", "cpu_s")
    yield both("first page: first paint, wall", 0.3, "s", "first page", "first_paint_s")
    first, heap = LISTS[0], theirs(LISTS[0], "heap_bytes", MB)
    yield Goal("list of 100,000, worst of any page, sort, filter: CPU", 0.4, "s", worst("cpu_s"),
               theirs(first, "cpu_s"))  # fmt: skip
    yield Goal("list: data", 60, "KB", worst("data_bytes", KB), theirs(first, "data_bytes", KB))
    yield Goal("list: heap", 10, "MB", worst("heap_bytes", MB), heap)
    queries = found["index"]["queries"].items()
    sql = [value / 1000 for name, value in queries if name.startswith(SORTED)]
    yield Goal("list: SQL", 0.2, "s", [max(sql)], note="CPU")
    yield both("5 MB of text, first message: CPU", 0.3, "s", "long", "cpu_shown_s")
    yield both("5 MB of text, first message: data", 500, "KB", "long", "data_bytes", KB)
    shown = ours("long, all", "text_bytes", MB)
    note = f"{short(min(shown))} MB in the page" if shown else ""
    # Inspect keeps what it shows out of the document, so its whole page counts until it rests.
    yield Goal("5 MB of text, all of it: CPU", 0.6, "s", ours("long, all", "cpu_s"),
               theirs("long", "cpu_s"), note=note)  # fmt: skip
    yield both("32,000 tokens coloured: CPU", 0.5, "s", "tokens", "cpu_s")
    yield both("32,000 tokens: elements of the page", 1000, "", "tokens", "elements")


def _of_run(found: Mapping[str, Any]) -> Iterator[Goal]:
    [case] = found["cases"].values()
    if not case["ratios"]:
        return
    [ratio] = case["ratios"]
    three = next(side for name, side in case["sides"].items() if name.startswith("ours"))
    per_minute = short(60 * three["per_s"]["median"])
    yield Goal("200 run, three viewers: rate, to none", AS_FAST, "x", _three(ratio["rate"]),
               at_least=True, note=f"{per_minute} a minute")  # fmt: skip
    yield Goal(
        "200 run, three viewers: CPU of worker and Redis, to none",
        2 - AS_FAST,
        "x",
        _three(ratio["cpu"]),
    )
    yield Goal(
        "200 run, three viewers: ids that came twice or not at all",
        0,
        "",
        [three["facts"]["ids_wrong"]["max"]],
    )


def _three(spread: Mapping[str, float]) -> list[float]:
    return [spread["min"], spread["median"], spread["max"]]


HEAD = ["goal", "at", "ours", "Inspect View", "met"]


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """What people read in a terminal."""
    rows = [HEAD, *(goal.cells() for goal in goals(found))]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEAD))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).replace("**", "").rstrip()


def markdown(found: Mapping[str, Any]) -> str:
    """The table of the documentation, with its circumstances."""
    machine, began = found["machine"], found["began"]
    inspect = ", ".join(found["peers"].get("inspect", ()))
    text = (
        f"{began[:10]}, {machine['processors']} processors ({machine['cpu']}), load "
        f"{machine['load'][0]} at the start and {found['load_after'][0]} at the end, Chromium "
        f"{found['chromium']}, {inspect}, commit {found['commit'][:8]}. Median of "
        f"{found['rounds']} rounds in turns, with the smallest and largest one."
    )
    rows = [HEAD, ["---"] * len(HEAD), *(goal.cells() for goal in goals(found))]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    missing = found["inspect"].get("missing")
    return f"{text}\n\n{table}\n" + (f"\nInspect View: {missing}.\n" if missing else "")


def write(found: Mapping[str, Any], page: Path = PAGE) -> None:
    """Put the table in its place."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    made = f"{MARKS[0]}\n\n{markdown(found)}\n{MARKS[1]}"
    page.write_text(before + made + after, encoding="utf-8")
