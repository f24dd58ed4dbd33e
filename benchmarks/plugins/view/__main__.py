"""Measure the goals of the viewer, beside Inspect View, in one run."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.jobs import ROW, jobs
from benchmarks.measuring import measure
from benchmarks.plugins.view import inspect_view, ours, running, served, table, view_index
from benchmarks.plugins.view.pages import TooSlow, browser, missing
from benchmarks.processes import ROOT, Server, redis_server
from benchmarks.report import circumstances, say
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger

EXAMPLES = """\
how to read it:
  CPU is that of the page's main thread, of a browser with an empty profile, until the page rests;
  "wall" is on a machine that may be busy. Ours and Inspect View take turns. Inspect View opens logs
  that Inspect wrote, of 50 samples (first page), of as many as ours has rows (list), and of one
  sample with as much text; where it has no such thing, or took too long, there is a dash.

examples:
  all of it (about ten minutes on a machine that does nothing else)
    make bench-view
  roughly, in four minutes (rows and runs are then too few for their goals)
    python -m benchmarks.plugins.view --rows 5000 --records 100 --rounds 1 --trajectories 40
  into the table of docs/measurements.md
    make bench-view WRITE=yes
"""
WAITING = "!document.querySelector('main .waiting')"
ROWS = "document.querySelectorAll('table.rows tbody tr').length"
MESSAGES = "document.querySelectorAll('article.message').length"
BUTTONS = "[...document.querySelectorAll('.tools button')]"
LOAD_ALL = "document.querySelector('.chips button').click();"
NO_MORE = f"{BUTTONS}.every((each) => !each.textContent.startsWith('show the whole'))"
Figures = dict[str, float]
Page = Callable[[], Figures]


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plugins.view",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    for name, default, what in (
        ("rows", 100_000, "rows of the list"),
        ("records", 400, "records of 75 KB that are indexed"),
        ("rounds", 3, "rounds of each page"),
        ("pairs", 4, "runs with and without viewers"),
        ("trajectories", running.COUNT, "trajectories of the run"),
    ):
        text = f"{what} (default: {default})"
        parser.add_argument(f"--{name}", type=int, metavar="N", default=default, help=text)
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="keep records, logs and indexes here, and take those of an earlier run from it",
    )
    parser.add_argument("--write", action="store_true", help=f"also into {table.PAGE.name}")
    arguments = parser.parse_args(given)
    if min(value for value in vars(arguments).values() if type(value) is int) < 1:
        parser.error("all numbers must be above 0")
    return arguments


# --- pages -----------------------------------------------------------------------------------


def our_pages(viewer: ours.Viewer, rows: int) -> dict[str, Page]:
    """Each opens a browser of its own."""
    place = viewer.place()
    full = f"{ROWS} >= {min(100, rows)} && {WAITING}"

    def opened(path: str, ready: str) -> Page:
        def page() -> Figures:
            with browser(place) as window:
                return window.open(path, ready)

        return page

    deep, upto = _deep(viewer, rows)
    return {
        "first page": opened("/", f"{ROWS} > 0 && {WAITING}"),
        "list, first page": opened("/all", full),
        "list, behind row 90,000": opened(f"/all?upto={upto}&after={deep}", full),
        "list, by cost": opened("/all?sort=-cost", full),
        "list, filtered": opened("/all?q=score:0+turns:%3E30+stop:max_turns&sort=-cost", full),
        "tokens": opened(
            f"/t/{ours.STRIP}?tab=tokens",
            "document.querySelectorAll('.strip [data-block]').length > 100",
        ),
    }


def _deep(viewer: ours.Viewer, rows: int) -> tuple[str, int]:
    """Where a page behind nine tenths of all rows begins."""
    page = viewer.api("/api/trajectories", limit=500)
    upto = page["upto"]
    for _ in range(rows * 9 // 10 // 500 - 1):
        page = viewer.api("/api/trajectories", limit=500, upto=upto, after=page["next"])
    return quote(page["next"], safe=""), upto


def long_transcript(viewer: ours.Viewer) -> tuple[Figures, Figures]:
    """The first message; then all messages with all text of each."""
    wanted = 2 * ours.TURNS + 1
    with browser(viewer.place()) as window:
        first = window.open(f"/t/{ours.LONG}", f"{MESSAGES} > 0")
        there = f"{MESSAGES} == {wanted} && {NO_MORE}"
        whole = window.measured(lambda: window.run(LOAD_ALL), there)
        length = window.run("return document.querySelector('.transcript').textContent.length;")
    cpu = first["cpu_s"] + whole["cpu_s"]
    return first, {**whole, "cpu_s": cpu, "text_bytes": length}


def pages(
    viewer: ours.Viewer, rows: int, logs: Path | None, rounds: int, theirs: dict[str, Any]
) -> dict[str, dict[str, list[Figures]]]:
    """All pages of both, in turns."""
    found: dict[str, dict[str, list[Figures]]] = {}

    def note(page: str, side: str, figures: Figures) -> None:
        found.setdefault(page, {}).setdefault(side, []).append(figures)

    mine = our_pages(viewer, rows)
    for number in range(rounds):
        if logs and number % 2 == 0:
            their_pages(logs, note, theirs, number)
        for name, page in mine.items():
            say(f"round {number + 1}: {name}: ours")
            with told():
                note(name, "ours", page())
        say(f"round {number + 1}: long: ours")
        with told():
            first, whole = long_transcript(viewer)
            note("long", "ours", first)
            note("long, all", "ours", whole)
        if logs and number % 2:
            their_pages(logs, note, theirs, number)
    return found


@contextmanager
def told() -> Iterator[None]:
    """A page of ours that is not shown in time is a goal that is not measured."""
    try:
        yield
    except TooSlow as error:
        say(str(error))


def their_pages(
    logs: Path, note: Callable[[str, str, Figures], None], theirs: dict[str, Any], number: int
) -> None:
    """Inspect View's pages; one that takes too long is reported, and not tried again."""
    for name, folder in (("first page", "few"), ("list, first page", "many"), ("long", "long")):
        if name in theirs.get("missing", ""):
            continue
        say(f"round {number + 1}: {name}: Inspect View")
        ready = inspect_view.READ if folder == "long" else inspect_view.SHOWN
        with inspect_view.inspect_view(logs / folder) as server, browser(server.place) as window:
            path = server.sample if folder == "long" else server.first
            try:
                note(name, "inspect", window.open(path, ready, limit_s=inspect_view.LIMIT_S))
            except TooSlow:
                limit = f"{name}: not shown within {inspect_view.LIMIT_S:.0f} s"
                theirs["missing"] = "; ".join(filter(None, (theirs.get("missing"), limit)))
            if folder == "many":
                theirs["resident_mb"] = served.memory_mb(server.pid)["most_mb"]


# --- all of it -------------------------------------------------------------------------------


def indexed(folder: Path) -> dict[str, Any]:
    """The phases of `benchmarks.plugins.view.view_index` over archives that are there."""
    found = {}
    for name in view_index.PHASES:
        if not name.startswith("grep"):  # no goal is about it
            say(f"index: {name}")
            found[name] = view_index.measured(name, folder)
    return found


def waiting(server: Server) -> None:
    """A run that nobody works on, so that the deployment has something to show."""
    ledger = Ledger.connect(url=server.url)
    enqueue(jobs(200, group_size=4, env="gsm8k", item=ROW, run="waiting"), ledger=ledger)
    ledger.close()


def everything(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures."""
    if not (folder / "small").exists():
        say("making records")
        ours.prepare(folder, arguments.rows, arguments.records)
    say("Inspect's logs")
    made = inspect_view.made(folder / "inspect", arguments.rows)
    theirs: dict[str, Any] = {"missing": made} if isinstance(made, str) else {"logs": made}
    logs = None if isinstance(made, str) else folder / "inspect"
    found: dict[str, Any] = {"inspect": theirs}
    with redis_server() as server, ours.viewer(server, folder, folder / "small") as viewer:
        waiting(server)
        say("the server reads all rows")
        rows = arguments.rows // 8 * 8
        viewer.indexed(rows)
        found["pages"] = pages(viewer, rows, logs, arguments.rounds, theirs)
        say("the server alone")
        found["served"] = served.comparison(viewer) | served.by_lookers(server, viewer)
        found["served"] |= served.memory_mb(viewer.pid)
    scale = arguments.trajectories / running.COUNT
    found["running"] = measure(running.PART, scale=scale, rounds=arguments.pairs, say=say)
    found["index"] = indexed(folder)
    return found


def chromium() -> str:
    """Its version."""
    done = subprocess.run(["chromium", "--version"], capture_output=True, text=True)
    return done.stdout.split()[1] if done.returncode == 0 else "?"


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a goal is missed."""
    arguments = parsed(given)
    if reason := missing():
        print(f"the viewer's pages: {reason}", file=sys.stderr)
        return 1
    result = circumstances() | {"rounds": arguments.rounds, "chromium": chromium()}
    path = ROOT / "results" / "benchmarks" / f"view-{result['began'].replace(':', '')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="hq-view-")
        folder = (arguments.folder or Path(stack.enter_context(made))).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        result |= everything(arguments, folder)
    result["load_after"] = [round(load, 2) for load in os.getloadavg()]
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(*table.lines(result), "", f"results: {path}", sep="\n")
    if arguments.write:
        table.write(result)
    return int(any(goal.met is not True for goal in table.goals(result)))


if __name__ == "__main__":
    sys.exit(main())
