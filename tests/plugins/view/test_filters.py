"""The filter language of the viewer: what it means, and that no text of it becomes SQL."""

from __future__ import annotations

import random
import re
import sqlite3
from dataclasses import astuple, replace

import pytest

from hermes_plugins.view.index.cursors import PageError
from hermes_plugins.view.index.database import _TABLES, REVIEWS
from hermes_plugins.view.index.fields import FIELDS, SORTS
from hermes_plugins.view.index.filters import compiled
from hermes_plugins.view.index.pages import RowKey, Sort, rows_after
from hermes_plugins.view.index.terms import FilterError
from hermes_plugins.view.index.writing import _INSERT
from hermes_plugins.view.records.rows import IndexRow, joined
from hermes_plugins.view.records.values import TEXT_CHARACTERS

NOW = 1_800_000_000.0
DAY_S = 86400.0
BASE = IndexRow(
    "r1.a.0", run="r1", env="swe_smith", instance="o__r-1", status="completed", stop="submitted"
)
ROWS = [
    replace(
        BASE,
        score=0.0,
        turns=31,
        cost=0.2,
        seconds=400.0,
        created=NOW - 60,
        policy_oldest="9",
        policy_newest="12",
        flags=joined(["tampered", "patch: conftest"]),
        completion_tokens=10_000,
        prompt_tokens=0,
    ),
    replace(
        BASE,
        id="r1.a.1",
        score=1.0,
        turns=5,
        stop="max_turns",
        created=NOW - 3 * DAY_S,
        tools=joined(["terminal"]),
        policy_oldest="step-12",
        policy_newest="step-12",
    ),
    replace(
        BASE,
        id="r2.b.0",
        run="r2",
        env="gsm8k",
        instance="100%_sure",
        status="failed",
        stop="failed",
        cause="sandbox",
        stage="setup",
        created=NOW - 20 * DAY_S,
        model='a"b',
    ),
]


@pytest.fixture(scope="module")
def table():
    connection = sqlite3.connect(":memory:")
    connection.executescript(_TABLES)
    for row in ROWS:
        connection.execute(_INSERT, astuple(row))
    connection.execute("INSERT INTO words (rowid, text) VALUES (1, 'the parser fails _c3bc')")
    connection.execute("INSERT INTO labels VALUES ('', 'r1.a.0', 'cheating')")
    connection.execute("INSERT INTO labels VALUES ('another', 'r1.a.1', 'fine')")
    connection.execute(REVIEWS.format(""))
    yield connection
    connection.close()


def met(table: sqlite3.Connection, query: str) -> str:
    """Numbers of the rows that a query meets, such as 13."""
    found = compiled(query, now=NOW)
    rows = table.execute(f"SELECT n FROM t WHERE {found.where} ORDER BY n", found.parameters)
    return "".join(str(n) for (n,) in rows)


@pytest.mark.parametrize(
    ("query", "numbers"),
    {
        "": "123",
        "run:r1": "12",
        "RUN:r1 score:0": "1",
        "run:r1,r2": "123",
        "-run:r1": "3",
        "-cause:sandbox": "12",
        "env:swe*": "12",
        "instance:*sure": "3",
        "instance:*0%_*": "3",
        'instance:"*sure"': "",
        "id:r1.a.*": "12",
        "score:none": "3",
        "score:*": "12",
        "-score:*": "3",
        "turns:>30": "1",
        "turns:5..31": "12",
        "turns:<=5": "2",
        "cost:<0.5": "1",
        "tokens:>=10k": "1",
        "completion:10k": "1",
        "seconds:>5m": "1",
        "created:<2h": "1",
        "created:>2h": "23",
        "created:<2w": "12",
        "created:1d..4d": "2",
        "created:>=2027-01-14": "1",
        "stop:max_turns,failed": "23",
        "cause:sandbox stage:setup": "3",
        "policy:12": "1",
        "policy:<10": "1",
        "policy:>11": "1",
        "policy:step-12": "2",
        "flag:*": "1",
        "-flag:*": "23",
        "flag:none": "23",
        "flag:conftest": "1",
        'flag:"patch: conftest"': "1",
        'flag:"conftest"': "",
        "tool:terminal": "2",
        'model:"a\\"b"': "3",
        "reviewed:no": "23",
        "reviewed:cheating": "1",
        "is:damaged": "",
        "parser": "1",
        '"Parser FAILS"': "1",
        "pars*": "1",
        "-parser": "23",
        "parser nothing": "",
        "Ü": "1",
    }.items(),
)
def test_a_query_meets_what_it_says(table, query, numbers):
    assert met(table, query) == numbers


@pytest.mark.parametrize(
    ("query", "at", "words"),
    [
        ("run:r1 scor:0", 7, "no field 'scor'.*did you mean score:"),
        ("\U0001d431 turns:>x", 10, "'x' is not a number"),
        ('a "b', 2, "quote is not closed"),
        ("run:", 4, "run: has no value.*write run:VALUE"),
        (":x", 0, "a name is missing"),
        ("run:>r1", 5, "cannot be compared"),
        ("turns:>1,2", 9, "takes one value"),
        ("created:2h", 8, "needs a comparison.*created:<2h"),
        ("created:>yesterday", 9, "neither an age nor a date"),
        ("cost:1e999", 5, "is not a number"),
        ("instance:a*b", 9, "a star stands at an end"),
        ("is:odd", 3, "one of stale, extra"),
        ("...", 0, "no word in it.*grep:"),
        ("-grep:x", 6, "grep: takes one text"),
        ('run:"a"b', 7, "a blank is missing"),
        ("x" * 3000, 2000, "3000 characters"),
        ("a " * 65, 128, "more than 64 terms"),
    ],
)
def test_an_error_names_the_place_and_the_remedy(query, at, words):
    with pytest.raises(FilterError) as caught:
        compiled(query)
    assert caught.value.at == at
    assert re.search(words, f"{caught.value} {caught.value.hint}")


def test_no_text_of_a_query_becomes_sql(table):
    constant = {"", *(field.column for field in FIELDS.values())}
    for name in FIELDS:
        for operator in ("", "<", ">="):
            for text in ("z9q') OR 1=1 --", "z9q*", "*z9q", "z9q..z9q", "1z9q"):
                for value in (text, f'"{text}"'):
                    try:
                        found = compiled(f"{name}:{operator}{value} -{name}:{operator}{value}")
                    except FilterError:
                        continue
                    assert "z9q" not in found.where
                    table.execute(f"SELECT 1 FROM t WHERE {found.where}", found.parameters)
    assert "z9q" not in constant


def test_any_text_is_a_query_or_an_error_with_a_place(table):
    chance = random.Random(1)
    pieces = [
        *FIELDS,
        ":",
        '"',
        "\\",
        "*",
        "-",
        ",",
        "..",
        ">",
        "<=",
        " ",
        "1",
        "2h",
        "\0",
        "\ud800",
        "'",
        "ü",
        "\u0301x",
        "日本",
        "OR",
        "NEAR(",
        "^",
        "none",
        "no",
        "9" * 400,
        "\U0001f600",
    ]
    for _ in range(3000):
        query = "".join(chance.choices(pieces, k=chance.randint(1, 8)))
        try:
            met(table, query)
            at = 0
        except FilterError as error:
            at = error.at
        assert 0 <= at <= len(query.encode("utf-16-le", "surrogatepass")) // 2


@pytest.mark.parametrize("name", [f"{sign}{name}" for name in SORTS for sign in ("", "-")])
def test_pages_by_any_order_hold_each_row_once_and_those_without_a_value_last(table, name):
    sort, key, found = Sort.of(name), None, []
    while rows := rows_after(table, compiled(""), sort, key, 99, 1):
        found += rows
        key = RowKey.decode(RowKey(rows[0][_column(sort)], rows[0][0]).encode(sort), sort)
    assert sorted(row[0] for row in found) == [1, 2, 3]
    values = [row[_column(sort)] for row in found]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=name.startswith("-"))
    assert values[: len(known)] == known


def _column(sort: Sort) -> int:
    return 1 + list(IndexRow.__dataclass_fields__).index(sort.column)


@pytest.mark.parametrize(
    "text", ["", "x", "bnVsbA", "W10", "é", "a" * 9999, "WyItY3JlYXRlZCIsW10sMV0"]
)
def test_a_cursor_that_was_not_given_out_is_refused(text):
    with pytest.raises(PageError, match="not a cursor"):
        RowKey.decode(text, Sort.of("-created"))


@pytest.mark.parametrize("character", ["\U0001f600", "é", "\x01", '"'])
def test_a_page_that_ends_at_the_longest_text_has_a_next_one(character):
    key, sort = RowKey(character * TEXT_CHARACTERS, 2**53), Sort.of("-reason")
    assert RowKey.decode(key.encode(sort), sort) == key


def test_a_cursor_belongs_to_its_order():
    with pytest.raises(PageError, match="another order"):
        RowKey.decode(RowKey(1.0, 1).encode(Sort.of("score")), Sort.of("-score"))
    with pytest.raises(PageError, match="sorted by"):
        Sort.of("n; DROP TABLE t")
