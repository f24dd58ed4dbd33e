"""100,000 trajectories in a real Chromium: bytes, requests, nodes and SQL statements are few.

Seconds are for `make bench-view`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from view_fixture import ViewedPages
from viewed import Viewed

from hermes_plugins.view.index.database import Database

ROWS, GROUP, PAGE = 100_000, 8, 100
MOST_BYTES, MOST_NODES, MOST_HEAP_BYTES = 60_000, 6_000, 10_000_000
MOST_STATEMENTS = 12
"""Of one page of the list: of the page itself, its count, and the distribution beside it."""
KINDS = ("completed", "completed", "completed", "failed")


def line(number: int) -> str:
    """A record of a few hundred bytes."""
    group, sample = divmod(number, GROUP)
    run = f"run-{number // 20_000}"
    failed = KINDS[number % 4] == "failed"
    turns = 1 + number * 7919 % 60
    names = {
        "run_id": run,
        "group_id": f"{run}.{group:020x}",
        "trajectory_id": f"{run}.{group:020x}.{sample}",
        "sample_index": sample,
        "group_size": GROUP,
        "env": "swe_smith",
        "instance_id": f"pypi__schedule.15fe9c75.func__{group % 3000:08x}",
    }
    failure = {"cause": "sandbox", "stage": "setup", "type": "SlotLost", "message": "gone"}
    facts = {
        "status": "failed" if failed else "completed",
        "stop_reason": "failed" if failed else "submitted",
        "score": None if failed else float(number % 3 == 0),
        "failure": failure if failed else None,
        "turns": [{}] * turns,
        "tool_calls": {"attempted": turns, "schema_valid": turns, "ok": turns, "error": 0},
        "usage": {"prompt_tokens": turns * 3000, "completion_tokens": turns * 90},
        "cost_usd": turns * 0.0007,
        "stage_seconds": {"setup": 2.0, "agent": turns * 2.5},
        "report": {"reason": "tests_fail", "flags": ["patch: conftest"] * (number % 40 == 0)},
        "created": 1.7e9 + number,
    }
    messages = [{"role": "user", "content": f"The bug is in function {group % 3000}."}]
    record = {**names, "schema_version": 1, "attempt": 1, "messages": messages, **facts}
    return json.dumps(record)


class Counted:
    """Statements that the index has been asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements: list[str] = []
        connect = Database._connect

        def counting(database: Database, *pragmas: str, **more: Any) -> sqlite3.Connection:
            made = connect(database, *pragmas, **more)
            made.set_trace_callback(self._asked)
            return made

        monkeypatch.setattr(Database, "_connect", counting)

    def _asked(self, statement: str) -> None:
        own = "'main'.'words_" not in statement  # what the full text asks of its own tables
        if own and statement.lstrip().upper().startswith(("SELECT", "WITH")):
            self.statements.append(statement)

    def take(self) -> list[str]:
        found, self.statements = self.statements, []
        return found


@pytest.fixture(scope="module")
def counted() -> Iterator[Counted]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Counted(monkeypatch)


@pytest.fixture(scope="module")
def many(counted, redis_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewed]:
    directory: Path = tmp_path_factory.mktemp("many")
    with (directory / "many.jsonl").open("w") as file:
        file.writelines(line(number) + "\n" for number in range(ROWS))
    pages = ViewedPages(directory / "many.jsonl", directory / "viewed", redis_binary)
    try:
        browser = Viewed(pages, directory / "profile")
        try:
            browser.login()
            yield browser
        finally:
            browser.close()
    finally:
        pages.close()


ASKED = """return performance.getEntriesByType("resource")
  .filter((each) => each.startTime >= arguments[0] && each.name.includes("/api/"))
  .map((each) => [new URL(each.name).pathname, each.encodedBodySize, each.decodedBodySize]);"""
NODES = """let n = 0; const walk = document.createTreeWalker(document.body);
  while (walk.nextNode()) n++; return n;"""
PLACES = {
    "newest": {},
    "filtered": {"q": "score:0 turns:>30 status:completed"},
    "sorted": {"sort": "-turns"},
    "without an index": {"sort": "prompt_tokens"},
    "words": {"q": '"function 1234"'},
    "of one run": {"q": "run:run-3 flag:*"},
}


def in_thousands(number: int) -> str:
    """A count as the pages write it."""
    if number < 10_000:
        return str(number)
    return f"{number / 1000:.{int(number < 100_000)}f}k"


def rows(viewed: Viewed) -> list[str]:
    return viewed.texts("table.rows tbody th")


def check(viewed: Viewed, counted: Counted, what: str, since: float) -> None:
    """What one page of a list has cost."""
    asked = [each for each in viewed.run(ASKED, since) if each[0] != "/api/events"]
    packed = sum(each[1] for each in asked)
    nodes, statements = viewed.run(NODES), counted.take()
    print(
        f"\n{what}: {len(asked)} requests, {packed} bytes, {nodes} nodes, "
        f"{len(statements)} statements"
    )
    assert 0 < packed <= MOST_BYTES
    assert len(asked) <= 4, asked
    assert nodes <= MOST_NODES
    assert len(statements) <= MOST_STATEMENTS, statements


@pytest.mark.parametrize("place", PLACES)
def test_a_page_of_100000_costs_as_much_as_of_a_few(many, counted, place):
    many.driver.get("about:blank")
    counted.take()
    many.open("/all", **PLACES[place])
    check(many, counted, place, 0)
    wanted = many.api("/api/trajectories", **{"sort": "", **PLACES[place]}, limit=PAGE)
    assert len(rows(many)) == len(wanted["rows"]) > 0
    assert many.texts(".pages [aria-live]")[0] == f"{in_thousands(wanted['count'])} trajectories"
    assert many.breaches == []


def test_pages_go_on_without_counting_rows_again_and_the_browser_keeps_one(many, counted):
    many.open("/all")
    seen = set(rows(many))
    for page in range(5):
        counted.take()
        since = many.run("return performance.now();")
        many.click("a[rel=next]")
        number = f"page {page + 2}"
        many.wait(number, lambda number=number: number in many.texts(".pages .quiet"))
        many.wait("its rows", lambda before=frozenset(seen): before.isdisjoint(rows(many)))
        check(many, counted, number, since)
        seen |= set(rows(many))
    assert len(seen) == 6 * PAGE
    assert len(rows(many)) == PAGE
    many.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    heap = many.run("return performance.memory.usedJSHeapSize;")
    print(f"\nheap {heap} bytes")
    assert heap <= MOST_HEAP_BYTES


def test_the_neighbours_in_a_list_of_100000_are_found(many, counted):
    many.open("/all", q="score:1", sort="-cost")
    names = rows(many)
    many.press("j", "j")
    many.press("\ue007")
    many.wait("the trajectory", lambda: many.texts(".neighbours"))
    many.settle()
    assert many.texts("h1")[0].endswith(names[1].rpartition(" ")[2])
    counted.take()
    many.press("]")
    many.wait("the third", lambda: "3 of " in many.texts(".neighbours")[0])
    assert len(counted.take()) <= MOST_STATEMENTS
