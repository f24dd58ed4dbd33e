"""Where bugs are tried: on lines that run, kinds in turn, one per function."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tools.make_bugs.sites import Candidate, Draw, candidates, covered_lines
from tools.make_bugs.validate import changed_lines, read_failure

SOURCE = b"""\
def first(a):
    if a < 3:
        return a + 1
    return a - 1

def second(a):
    return a[1:] or a[0]

def never(a):
    return a < 3
"""
RAN = {"pkg/core.py": frozenset({1, 2, 3, 6, 7, 9})}


def found() -> list[Candidate]:
    return candidates({"pkg/core.py": SOURCE}, RAN)


def order(draw: Draw) -> list[tuple[str, str]]:
    taken = []
    for candidate in draw:
        draw.use(candidate.site.kind, candidate.place)
        taken.append((candidate.site.kind, candidate.site.function))
    return taken


def test_sites_are_on_lines_that_ran() -> None:
    assert {c.site.function for c in found()} == {"first", "second"}
    assert not any(c.site.line == 4 == c.site.last_line for c in found())


def test_a_file_that_cannot_be_parsed_has_no_sites() -> None:
    assert candidates({"pkg/core.py": b"def f(:\n"}, RAN) == []


def test_at_most_one_bug_goes_into_a_function() -> None:
    taken = order(Draw(found(), "1"))
    assert sorted(function for _, function in taken) == ["first", "second"]


def test_more_bugs_per_function_can_be_allowed() -> None:
    counts = Counter(function for _, function in order(Draw(found(), "1", per_function=3)))
    assert counts == {"first": 3, "second": 3}


def test_kinds_take_turns() -> None:
    kinds = [kind for kind, _ in order(Draw(found(), "1", per_function=100))]
    different = len(set(kinds))
    assert len(set(kinds[:different])) == different


def test_candidates_that_come_to_nothing_do_not_use_a_function_up() -> None:
    drawn = [candidate.place for candidate in Draw(found(), "1")]
    assert len(drawn) == len(found())


def test_equal_seeds_draw_alike_and_other_seeds_differ() -> None:
    orders = {seed: order(Draw(found(), str(seed), per_function=9)) for seed in range(5)}
    assert orders[1] == order(Draw(list(reversed(found())), "1", per_function=9))
    assert len({tuple(o) for o in orders.values()}) > 1


def test_functions_that_have_rows_already_are_passed_over() -> None:
    draw = Draw(found(), "1")
    draw.use("cmp_flip", ("pkg/core.py", "first"))
    assert {function for _, function in order(draw)} == {"second"}


def test_tests_and_packaging_are_no_place_for_bugs() -> None:
    files = ["pkg/core.py", "tests/helper.py", "pkg/test_x.py", "setup.py", "docs/conf.py", "e.py"]
    files.append("tools/make.py")
    report = {"files": {f: {"executed_lines": [1]} for f in files}}
    report["files"]["e.py"]["executed_lines"] = []
    assert set(covered_lines(json.dumps(report).encode())) == {"pkg/core.py"}


@pytest.mark.parametrize("report", [b"", b"[]", b"{}", b'{"files": {"a": {}}}', b'{"files": 3}'])
def test_what_is_no_coverage_report_is_refused(report: bytes) -> None:
    with pytest.raises(ValueError, match=r"coverage|JSON|Expecting"):
        covered_lines(report)


def test_changed_lines_are_those_of_both_sides() -> None:
    assert changed_lines(b"a\nb\nc\n", b"a\nx\nc\n") == ["b", "x"]
    assert changed_lines(b"a\nb\nc\n", b"b\na\nc\n") in (["b", "b"], ["a", "a"])


def test_a_failure_is_split_into_message_and_frames() -> None:
    failure = read_failure(
        "t.py::test", "assert 1 == 2\n +  where 1 = f()\nt.py:3: in test\nsrc/p.py:9: in f"
    )
    assert failure.message == "assert 1 == 2\n +  where 1 = f()"
    assert failure.frames == (("t.py", 3, "test"), ("src/p.py", 9, "f"))
