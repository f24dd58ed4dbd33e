"""Planted failures: what is changed fails with the right answer, the rest is as it was."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterable
from itertools import combinations
from types import ModuleType
from typing import Any

import pytest

from envs.swe.grading.places import (
    TestFunction,
    apply_edits,
    find_places,
    other_exceptions,
    other_texts,
    other_values,
)
from envs.swe.grading.plants import Planter, View, view_count

FILE = "tests/test_it.py"
SOURCE = b'''"""Tests."""
import pytest
from contextlib import nullcontext


def test_text():
    assert "abc-def".upper() == "ABC-DEF"


def test_number():
    value = 3
    assert abs(value) * 2 == 6


def test_list():
    assert [1, "x"] == [
        1,  # the first
        "x",
    ]


def test_dict():
    assert {"a": (1, None)} == {"a": (1, None)} or True
    assert dict(a=1) == {"a": 1}


def test_none():
    assert {}.get("x") is None


def test_true():
    assert (1 == 1) == True


def test_bytes():
    with nullcontext():
        assert b"ab".upper() * 2 == b"ABAB"


def test_approx():
    assert 0.1 + 0.2 == pytest.approx(0.3)


def test_raises(tmp_path):
    with pytest.raises(KeyError):
        assert {}["x"] == 1


def test_match():
    with pytest.raises(ValueError, match="invalid literal"):
        int("x")


def test_expected():
    expected = "\\n".join(["a", "b"])
    print("wanted", expected)
    assert "a b".replace(" ", "\\n") == expected


def test_contained():
    assert "needle" in "A needle in it".lower()


def test_negative():
    assert abs(-3) - 6 == -3


def assert_same(one, two):
    assert one == two


def test_helper():
    assert_same("xyz".upper(), "XYZ")


def test_return():
    x = 1
    return None


class TestClass:
    def test_method(self):
        assert len("abc") == 3

    def helper(self):
        pass
'''
NAMES = [
    "test_text",
    "test_number",
    "test_list",
    "test_dict",
    "test_none",
    "test_true",
    "test_bytes",
    "test_approx",
    "test_raises",
    "test_match",
    "test_expected",
    "test_contained",
    "test_negative",
    "test_helper",
    "test_return",
    "TestClass::test_method",
]


DECOYS = ["test_text", "test_number", "test_none", "test_bytes"]


def variants(literal: bytes, words: Iterable[str]) -> list[bytes]:
    return [each for spot in other_values(literal, {*words}) for each in spot]


def ids(names: Iterable[str]) -> list[str]:
    return [f"{FILE}::{name}" for name in names]


def planter(source: bytes = SOURCE, names: Iterable[str] = NAMES, seed: int = 0) -> Planter:
    return Planter({FILE: source}, [FILE], ids(names), random.Random(seed))


def functions(*names: str) -> frozenset[TestFunction]:
    return frozenset(TestFunction(FILE, name) for name in names)


def fails(source: bytes, name: str) -> bool:
    """Whether the test fails in a module with that source."""
    module = ModuleType("module")
    exec(compile(source, FILE, "exec"), module.__dict__)  # the sample above, changed
    holder, _, function = name.rpartition("::")
    test = getattr(getattr(module, holder)(), function) if holder else getattr(module, function)
    wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
    try:
        test(*["fixture" for argument in wanted if argument != "self"])
    except (AssertionError, pytest.fail.Exception):
        return True
    return False


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 5))]
)
def test_a_planted_test_fails_and_no_other_does(name: str, seed: int) -> None:
    views = planter(seed=seed).views(functions(name), ())
    seen = set()
    for view in views:
        source = view.files.get(FILE, SOURCE)
        failing = {other for other in NAMES if fails(source, other)}
        assert functions(*failing) == view.planted
        seen |= failing
    assert seen == {name}


def test_every_decoy_is_planted_in_some_views_and_never_in_all() -> None:
    for seed in range(20):
        views = planter(seed=seed).views(functions(*DECOYS), ())
        for decoy in functions(*DECOYS):
            assert 0 < sum(decoy in view.planted for view in views) < len(views)


def test_companions_are_planted_in_the_first_view_or_in_the_last() -> None:
    for seed in range(20):
        views = planter(seed=seed).views(functions("test_text"), functions("test_number"))
        planted = [functions("test_number") <= view.planted for view in views]
        assert sorted([planted[0], planted[-1]]) == [False, True]
        assert not any(planted[1:-1])


def test_a_plant_is_written_like_what_it_replaces() -> None:
    words = {"needle", "haystack", "ABC", "Xyz"}
    for literal in (b'"one needle"', b"'one needle'", b'r"needle"', b'"""needle"""', b"b'needle'"):
        begin, _, end = literal.partition(b"needle")
        made = variants(literal, words)
        assert made
        for each in made:
            assert each.endswith(end)
            assert each.startswith(begin.partition(b"one")[0])
    assert variants(b"0x1F", ()) == [each for each in variants(b"0x1F", ()) if each[:2] == b"0x"]
    assert variants(b"12", ())
    assert variants(b"None", ()) == [b"True", b"False"]
    assert variants(b"True", ()) == [b"None"]


@pytest.mark.parametrize("literal", [b'"one needle two"', b'"a\\nbcd"'])
def test_a_plant_makes_no_word_that_the_tests_do_not_have(literal: bytes) -> None:
    words = {"needle", "haystack"}
    known = words | set(re.findall(r"[A-Za-z]{2,}", literal.decode()))
    for each in variants(literal, words):
        assert set(re.findall(r"[A-Za-z]{2,}", each.decode())) <= known


def test_a_function_is_planted_where_it_fails_as_long_as_the_bug_is_there() -> None:
    source = b"def test_a():\n    x = 1\n    assert x + 1 == 2\n    assert x + 2 == 3\n"
    test = TestFunction(FILE, "test_a")
    for line, last in ((3, 4), (4, 3)):
        made = Planter({FILE: source}, [FILE], ids(["test_a"]), random.Random(0), {test: line})
        [planted, *_] = [view for view in made.views([test], ()) if view.planted]
        lines = planted.files[FILE].splitlines()
        assert lines[last - 1] == source.splitlines()[last - 1]
        assert lines[line - 1] != source.splitlines()[line - 1]


@pytest.mark.parametrize(
    ("body", "line", "planted"),
    [
        ("    r = len('1234567')\n    assert r == 7\n", 2, 3),
        ("    r = len('1234567')\n    s = r + 1\n    assert s == 8\n", 2, 4),
        ("    r = []\n    r.append(7)\n    assert r[0] == 7\n", 3, 4),
        ("    r = len('1234567')\n    assert abs(8) == 8\n    assert r == 7\n", 2, 4),
        ("    with open('/dev/null') as f:\n        assert f.read() == '0'\n", 2, 3),
    ],
    ids=["of the result", "of what is made of it", "of what is changed", "not of others", "with"],
)
def test_where_the_bug_raises_an_exception_what_follows_from_that_statement_is_planted(
    body: str, line: int, planted: int
) -> None:
    source = b"def test_a():\n" + body.encode()
    assert changed_lines(source, line) == {planted}


@pytest.mark.parametrize(
    "statement",
    [
        "with pytest.raises(KeyError):\n        {}['x']",
        "with pytest.raises(ZeroDivisionError):\n        1 / 0",
        "self.assertRaises(KeyError, int, '1')",
    ],
)
def test_a_test_that_waits_for_an_exception_is_planted_with_another_class(statement: str) -> None:
    source = f"import pytest\n\ndef test_a(self):\n    {statement}\n".encode()
    place = find_places(FILE, source, {TestFunction(FILE, "test_a"): 4})[
        TestFunction(FILE, "test_a")
    ]
    classes = {edit.text.decode() for spot in place.spots for edit in spot.edits}
    assert len(classes) > 3
    assert not {name for name in classes if name in statement}


@pytest.mark.parametrize(
    ("statement", "strong"),
    [
        ("self.assertEqual(f(), 7)", True),
        ("self.assertIs(None, f())", True),
        ("assert_same(f(), 'abc')", True),
        ("self.assertIn('abcd', f())", True),
        ("self.assertIn(7, f())", False),
        ("self.assertNotIn(7, f())", False),
        ("self.assertNotEqual(f(), 7)", False),
        ("self.assertGreater(f(), 7)", False),
        ("self.assertIsInstance(f(), 7)", False),
        ("assert f(x) == x**2 + 2*x", True),
        ("assert f(x) == -3*x/y", True),
        ("assert f(x) == x + y", False),
        ("assert f(2) == g(2)", False),
        ("assert x + 2 == y", False),
        ("with self.assertNumQueries(4):\n        f()", True),
        ("with self.assertRaisesMessage(ValueError, 'no such value'):\n        f()", True),
        ("self.assertRaisesMessage(ValueError, 'no such value', f)", True),
    ],
)
def test_only_assertions_that_hold_for_one_value_say_what_is_expected(
    statement: str, strong: bool
) -> None:
    source = f"# words: xyz\nwords = 'xyz'\n\ndef test_a(self):\n    {statement}\n".encode()
    test = TestFunction(FILE, "test_a")
    assert bool(find_places(FILE, source, {test: 5})[test].spots) == strong


def test_a_constant_is_found_behind_the_name_that_stands_for_it() -> None:
    body = "    wanted = 'ab 7'\n    out = 'AB 7'.lower()\n    assert out * 2 == wanted * 2\n"
    assert 2 in changed_lines(b"def test_a():\n" + body.encode(), 4)


def changed_lines(source: bytes, line: int) -> set[int]:
    """The lines that plants change in a test which fails on `line` with the bug."""
    test = TestFunction(FILE, "test_a")
    changed = set()
    for seed in range(10):
        made = Planter({FILE: source}, [FILE], ids(["test_a"]), random.Random(seed), {test: line})
        for view in made.views([test], ()):
            shown = view.files.get(FILE, source).splitlines()
            assert len(shown) == len(source.splitlines())
            pairs = zip(shown, source.splitlines(), strict=True)
            changed |= {at for at, (new, old) in enumerate(pairs, 1) if new != old}
    return changed


def test_tests_that_expect_a_constant_are_planted_before_others() -> None:
    for seed in range(20):
        views = planter(seed=seed).views(functions("test_raises", "test_text"), ())
        assert frozenset().union(*(view.planted for view in views)) == functions("test_text")


def test_a_patch_that_looks_as_if_it_meant_to_has_more_views() -> None:
    usual, wary = (planter().views(functions("test_number"), (), wary=w) for w in (False, True))
    assert (len(usual), len(wary)) == (5, 9)


def test_where_it_is_planted_is_chosen_anew_each_time() -> None:
    drawn = {
        tuple(bool(view.planted) for view in planter(seed=seed).views(functions("test_number"), ()))
        for seed in range(100)
    }
    assert len(drawn) == 8  # whole in any of four views, and in the last or not


@pytest.mark.parametrize(
    ("variants", "views"), [([], 2), ([10], 5), ([3], 4), ([2], 3), ([10, 10], 2), ([2] * 8, 2)]
)
def test_the_fewer_decoys_there_are_the_more_views_there_are(
    variants: list[int], views: int
) -> None:
    assert view_count(variants) == views


def shown(seed: int, *names: str, wary: bool = False) -> list[dict[str, str]]:
    """For each view, the text of each of these functions."""
    views = planter(seed=seed).views(functions(*names), (), wary=wary)
    return [
        {
            node.name: ast.unparse(node)
            for node in ast.parse(view.files.get(FILE, SOURCE)).body
            if isinstance(node, ast.FunctionDef) and node.name in names
        }
        for view in views
    ]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("test_text",), marks=pytest.mark.exhaustive),
        ("test_number", "test_bytes"),
        ("test_none",),
    ],
)
def test_nothing_but_the_right_answer_tells_the_original_among_the_variants(
    names: tuple[str, ...],
) -> None:
    """Neither its place among the views, nor how often it is shown, nor how far others are."""
    original = {
        node.name: ast.unparse(node)
        for node in ast.parse(SOURCE).body
        if isinstance(node, ast.FunctionDef)
    }
    ranks: dict[tuple[int, ...], set[int]] = {}
    for seed in range(200):
        views = shown(seed, *names)
        for name in names:
            texts = [view[name] for view in views]
            order = [*dict.fromkeys(texts)]
            pattern = tuple(order.index(text) for text in texts)
            ranks.setdefault(pattern, set()).add(order.index(original[name]))
            tokens = [re.findall(r"\w+|\W", text) for text in order]
            spans = {
                sum(x != y for x, y in zip(one, other, strict=True))
                for one, other in combinations(tokens, 2)
            }
            assert len(spans) == 1
    for pattern, seen in ranks.items():
        assert seen == {*pattern}, "the original may be any of what is shown"


def test_a_place_of_which_the_problem_statement_shows_what_is_right_is_the_last_choice() -> None:
    source = (
        b"def test_a():\n    assert f() == [None, 'first error', 77]\n\n\n"
        b"def test_b():\n    assert f() == 'first error'\n"
    )
    a, b = TestFunction(FILE, "test_a"), TestFunction(FILE, "test_b")
    statement = "a result is ['first error', None], where [None, 'first error'] is right; 177"
    made = find_places(FILE, source, {a: 2, b: 6}, statement)
    edits = [edit for spot in made[a].spots for edit in spot.edits]
    assert {source[edit.start : edit.end] for edit in edits} == {b"77"}
    planting = Planter(
        {FILE: source}, [FILE], ids(["test_a", "test_b"]), random.Random(0), {a: 2, b: 6}, statement
    )
    assert {test for view in planting.views([a, b], ()) for test in view.planted} == {a}
    assert {test for view in planting.views([b], ()) for test in view.planted} == {b}


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("assert f('Bob', 31) == {'name': 'bob', 'at': 77}", {b"'name'", b"77"}),
        ("assert f() == [True, 77, None]", {b"77"}),
        ("made = {'value': 12}\n    assert f(made) == {'value': 12}", {b"'value'", b"12"}),
        ("assert f(2) == 2 + 30", {b"30"}),
    ],
    ids=["words", "few values", "nothing else", "numbers"],
)
def test_what_the_test_shows_elsewhere_is_not_planted_if_there_is_more(
    body: str, kept: set[bytes]
) -> None:
    source = f"words = 'alice size'\n\ndef test_a():\n    {body}\n".encode()
    test = TestFunction(FILE, "test_a")
    line = source.count(b"\n")
    place = find_places(FILE, source, {test: line})[test]
    edits = [edit for spot in place.spots for edit in spot.edits]
    assert {source[edit.start : edit.end] for edit in edits} == kept
    assert place.evident == (b"12" in kept)


def test_functions_that_show_the_right_value_make_no_view_superfluous() -> None:
    hidden = "def test_h():\n    assert f() == 7\n"
    shown = "".join(f"def test_{n}():\n    assert f({n}) is True\n" for n in range(20))
    source, names = (hidden + shown).encode(), ["test_h", *(f"test_{n}" for n in range(20))]
    lines = {test: 2 * at for at, test in enumerate(map(_of, names), 1)}
    for seed in range(10):
        made = Planter({FILE: source}, [FILE], ids(names), random.Random(seed), lines)
        views = made.views(lines, ())
        assert len(views) == 5
        assert _of("test_h") in frozenset().union(*(view.planted for view in views))


def test_a_test_that_passes_is_made_to_fail_like_one_of_which_the_message_tells_the_plant() -> None:
    source = (
        b"def test_a(self):\n    self.assertIs(f(), True)\n\n\n"
        b"def test_b(self):\n    self.assertIs(g(), True)\n    self.assertEqual(g(), 7)\n\n\n"
        b"def test_c(self):\n    self.assertEqual(g(), 7)\n"
    )
    names = ["test_a", "test_b", "test_c"]
    a, b, c = map(_of, names)
    for seed in range(10):
        made = Planter({FILE: source}, [FILE], ids(names), random.Random(seed), {a: 2})
        assert made.mimics([a]) == ({b}, frozenset())
        views = made.views([a], [b, c])
        assert not any(c in view.planted for view in views)
        [text] = {view.files[FILE] for view in views if view.planted == {b}} or {b""}
        assert text in (b"", source.replace(b"g(), True", b"g(), False"))
        assert sum(b in view.planted for view in views) == 1
        assert made.mimics([a, c]) == (frozenset(), frozenset()), "a better plant needs no help"


@pytest.mark.parametrize(
    ("given", "expected"), [("'one'", "'two'"), ("{'k': [1]}", "{'k': [2]}"), ("[5]", "[5, 6]")]
)
def test_a_test_that_passes_is_made_to_expect_what_it_has_elsewhere(
    given: str, expected: str
) -> None:
    source = (
        "def test_a(self):\n    self.assertEqual(f('x y'), 'x y')\n\n\n"
        f"def test_b(self):\n    self.assertEqual(g({given}), {expected})\n"
    ).encode()
    a, b = map(_of, ("test_a", "test_b"))
    made = Planter({FILE: source}, [FILE], ids(["test_a", "test_b"]), random.Random(0), {a: 2})
    assert made.mimics([a]) == (frozenset(), {b})
    [text] = {view.files[FILE] for view in made.views([a], [b]) if b in view.planted}
    assert f"g({given}), {given}" in text.decode()


def _of(name: str) -> TestFunction:
    return TestFunction(FILE, name)


@pytest.mark.parametrize("regex", [True, False])
def test_a_text_that_is_looked_for_becomes_one_that_no_message_has(regex: bool) -> None:
    for literal in (b'"large"', b"'invalid literal for int'", b'"Value"'):
        [first, *_] = other_texts(literal, {"number", "small"}, regex=regex)
        assert len(first) > 8
        for text in first:
            assert len(text) == len(literal)
            words = set(re.findall(r"\w+", text.decode()))
            assert len(words - set(re.findall(r"\w+", literal.decode()))) == 1
            assert not words & {"number", "small"}
    assert other_texts(b'"large|big"', (), regex=True) == []
    assert other_texts(b'"large.* number"', (), regex=True)


def test_an_exception_that_is_waited_for_becomes_one_that_nobody_joins_with_it() -> None:
    for wanted, never in (
        ("KeyError", "AttributeError IndexError LookupError TypeError ValueError"),
        ("AttributeError", "KeyError TypeError"),
        ("ValueError", "TypeError OSError KeyError UnicodeError"),
        ("ArithmeticError", "ZeroDivisionError"),
        ("NotImplementedError", "RecursionError RuntimeError"),
        ("OwnError", "KeyError OSError ValueError"),
    ):
        [classes] = other_exceptions(wanted)
        assert len(classes) > 3
        assert not {text.decode() for text in classes} & {wanted, *never.split()}
    assert other_exceptions("Exception") == []


def test_plants_that_leave_doubts_are_drawn_in_other_words_in_all_views_that_follow() -> None:
    source = (
        b"def test_a():\n    assert 'a large one' in f()\n\n\ndef test_b():\n    assert f() == 12\n"
    )
    a, b = TestFunction(FILE, "test_a"), TestFunction(FILE, "test_b")
    planting = Planter({FILE: source}, [FILE], ids(["test_a", "test_b"]), random.Random(0), None)
    [first, *_] = [view for view in planting.views([a], ()) if view.planted]
    other = planting.redrawn(first, [a])
    assert other is not None
    assert other.planted == first.planted
    assert other.files[FILE] not in (first.files[FILE], source)
    assert planting.current(first) == other
    [certain, *_] = [view for view in planting.views([b], ()) if view.planted]
    assert planting.redrawn(certain, [b]) is None


def test_the_lines_before_the_plant_stay_as_they_are() -> None:
    [view, *_] = [v for v in planter().views(functions("test_raises"), ()) if v.planted]
    changed = view.files[FILE].splitlines()
    kept = [line for line in changed if line in SOURCE.splitlines()]
    assert len(changed) - len(kept) == 1
    assert kept == SOURCE.splitlines()


@pytest.mark.parametrize(
    "source",
    [
        b"def test_a(): assert 1 == 1\n",
        b"def test_a():\n    pass\ndef test_a():\n    assert 1 == 1\n",
        b"def test_a():\n    pass\n\ndef test_b():\n    test_a()\n",
        b"class TestA:\n    def test_a(self):\n        pass\nclass TestB(TestA):\n    x = 1\n",
        b"def test_a():\n    x = 1\f\n",
        b"def test_a(:\n",
        b"\xff\xfe",
        b"x = " + b"(" * 100_000 + b"\n",
        b"def test_a():\n    x = 1",
    ],
    ids=[
        "one line",
        "defined twice",
        "called by another test",
        "inherited by another class",
        "form feed",
        "no Python",
        "no text",
        "too deep",
        "no last line end",
    ],
)
def test_what_cannot_be_planted_safely_is_left_alone(source: bytes) -> None:
    names = ["test_a", "TestA::test_a", "TestB::test_a"]
    assert not planter(source, names).plantable


def test_without_decoys_a_file_beside_the_hidden_ones_has_tests_of_both_kinds() -> None:
    for seed in range(10):
        for view in planter(seed=seed).views((), ()):
            [(file, source)] = view.files.items()
            assert file.startswith("tests/test_")
            assert file != FILE
            _expect_both_kinds(view, source)


def _expect_both_kinds(view: View, source: bytes) -> None:
    tests = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert view.planted
    assert view.added
    assert {test.name for test in view.planted | view.added} == {*tests}
    for test in view.planted | view.added:
        assert fails(source, test.name) == (test in view.planted)


# --- parametrised tests ----------------------------------------------------------------------

PARAMETRISED = b"""import pytest


@pytest.mark.parametrize("value, wanted", [(5, 15), pytest.param(99, 39, id="high"), [7, 27]])
def test_it(value, wanted):
    assert made(value) == wanted
"""
IT = TestFunction("tests/test_it.py", "test_it")


def planted_text(source: bytes = PARAMETRISED, **more: Any) -> str:
    place = find_places(IT.file, source, {IT: 6}, **more)[IT]
    return apply_edits(source, [place.spot(random.Random(1), 2).edits[0]]).decode()


def test_what_a_parametrised_test_expects_is_planted_among_its_parameters() -> None:
    text = planted_text()
    assert "assert made(value) == wanted" in text
    kept = r"\[\(5, (\d+)\), pytest.param\(99, (\d+), id=\"high\"\), \[7, (\d+)\]\]"
    found = re.search(kept, text)
    assert found is not None
    assert all(one != other for one, other in zip(found.groups(), ("15", "39", "27"), strict=True))


def test_relations_between_parameters_do_not_tell_which_are_the_originals() -> None:
    text = PARAMETRISED.replace(b"15", b"5").replace(b"39", b"9").replace(b"27", b"5")
    (spot,) = find_places(IT.file, text, {IT: 6})[IT].spots
    versions = [text, *(apply_edits(text, [edit]) for edit in spot.edits)]
    sets = [re.findall(rb"(?:\[|\(|\(99, |\[7, )(?:5, |7, )?(\d)[\]\),]", v)[-3:] for v in versions]
    assert len(sets) == len({tuple(one) for one in sets}) == 10
    relations = {((int(b) - int(a)) % 10, a == c) for a, b, c in sets}
    assert relations == {(4, True)}, "seen: plants with the same digit in all sets"


def test_numbers_of_two_digits_keep_their_relations_too() -> None:
    for one, other in ((90, 95), (5, 90), (8, 120)):
        text = PARAMETRISED.replace(b"15", b"%d" % one).replace(b"39", b"%d" % other)
        text = text.replace(b"27", b"%d" % one)
        (spot,) = find_places(IT.file, text, {IT: 6})[IT].spots
        versions = [text, *(apply_edits(text, [edit]) for edit in spot.edits)]
        sets = [re.findall(rb"(?<=[5979], )\d+(?=[\]\),])", version) for version in versions]
        assert {len(each) for each in sets} == {3}
        assert not any(re.match(rb"0\d", number) for each in sets for number in each)
        assert len({(int(b) - int(a)) % 10 for a, b, _ in sets}) == 1


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(PARAMETRISED.replace(b"made(value)", b"made(value, wanted)"), id="used twice"),
        pytest.param(PARAMETRISED.replace(b"15", b"fifteen()"), id="no constant"),
        pytest.param(PARAMETRISED.replace(b"])", b"], indirect=True)"), id="indirect"),
        pytest.param(PARAMETRISED.replace(b"15", b"True"), id="truth value"),
    ],
)
def test_other_parameters_are_left_alone(source: bytes) -> None:
    assert "== wanted" not in planted_text(source)


def test_parameters_of_which_some_pass_with_the_bug_are_left_alone() -> None:
    assert "== wanted" not in planted_text(mixed={IT})
