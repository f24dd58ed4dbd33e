"""Problem statements: written from outcomes, quoting neither tests nor the change."""

from __future__ import annotations

import pytest

from tools.make_bugs.statement import quotes, write_statement
from tools.make_bugs.symptoms import FailedCheck, Library, public_names

TESTS = """\
import pytest
import shapes

def helper():
    return 1

def test_area_of_a_square():
    side = shapes.measure("4 cm")
    assert shapes.area(side) == 16

class TestColours:
    @pytest.mark.parametrize("name", ["red", "blue"])
    def test_mixing(self, name):
        with pytest.raises(ValueError):
            shapes.mix(name, "nothing at all")

    def test_joining(self):
        assert "-".join(self.colours) == "red-blue"
"""
LIBRARY = Library(
    label="shapes 1.0",
    names=frozenset({"area", "measure", "mix", "join"}),
    tests={"tests/test_shapes.py": TESTS},
)
PLACE = ("src/shapes.py", "Square.area.inner")
SQUARE = "tests/test_shapes.py::test_area_of_a_square"
MIXING = "tests/test_shapes.py::TestColours::test_mixing"


def failure(
    message: str, *, test_id: str = SQUARE, line: int = 9, inside: tuple[str, ...] = ()
) -> FailedCheck:
    frames = [(test_id.partition("::")[0], line, test_id.rpartition("::")[2])]
    frames += [("src/shapes.py", 3, name) for name in inside]
    return FailedCheck(test_id, message, tuple(frames))


def write(*failures: FailedCheck, changed: tuple[str, ...] = (), seed: str = "1") -> str:
    text = write_statement(LIBRARY, failures, 7, place=PLACE, changed_lines=changed, seed=seed)
    assert text is not None
    return text


def test_a_wrong_value_is_described_with_the_seen_and_the_right_one() -> None:
    text = write(failure("assert 8 == 16\n +  where 8 = <function area at 0x7f0>(4)"))
    assert "# `area`: wrong result" in text
    assert "`area`, for `4`, gives `8`, where `16` is right." in text


def test_the_side_that_came_from_the_call_is_the_observed_one() -> None:
    text = write(failure("assert 16 == 8\n +  where 8 = <function area at 0x7f0>(4)"))
    assert "`area`, for `4`, gives `8`, where `16` is right." in text


def test_a_text_that_only_looks_like_a_dict_is_no_value_that_was_wrong() -> None:
    assert "should be the same" not in write(failure("AssertionError: {[1]: 2} != 3", line=5))


def test_without_knowing_which_side_is_right_both_values_are_named() -> None:
    text = write(failure("AssertionError: 8 != 16", line=5))
    assert "`8` and `16` should be the same" in text


@pytest.mark.parametrize(
    "message",
    [
        "assert <Shape at 0x7f> == 16",
        f"assert {'1' * 100} == 16",
        f"assert '{'a' * 100}' == 16",
        "AssertionError: something else",
        "assert 8 == 16 or fallback()",
        "",
    ],
)
def test_values_that_are_no_short_literals_stay_out(message: str) -> None:
    text = write(failure(message))
    assert "`area` gives a wrong result." in text
    assert "0x7f" not in text


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("assert 3 in [1, 2]", "`3` should be part of `[1, 2]`"),
        ("assert 1 not in [1, 2]", "`1` should not be part of `[1, 2]`"),
        ("assert None is True", "`None` is seen where `True` is right"),
        ("assert 3 < 2", "`3 < 2` should hold"),
        ("assert 3 != 3", "`3` is exactly what must not come out"),
        ("assert 8 == 16", "With `area`, a result is `8`, where `16` is right"),
        ("assert False", "`area` gives a wrong result."),
        ("assert False\n +  where False = area(3)", "`area`, for `3`, gives `False`, where a true"),
        ("assert not 'x'\n +  where 'x' = area()", "`area` gives `'x'`, where nothing of the kind"),
        (
            "assert [Long(1)...] == []\n  - b\n  + a",
            "part of the result is `a`, where `b` is right",
        ),
        (
            "assert L == M\n  At index 0 diff: 1 != 2\n",
            "part of the result is `1`, where `2` is right",
        ),
        (
            "assert D == E\n  {'a': 1} != {'a': 2}",
            "result is `{'a': 1}`, where `{'a': 2}` is right",
        ),
        ("assert 16 == 8\n +  where 8 = a.minute()", "With `area`, a result is `8`, where `16`"),
    ],
)
def test_other_assertions_are_worded_too(message: str, sentence: str) -> None:
    assert sentence in write(failure(message))


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("assert shapes.area(2) == 16", "a result is `8`, where `16` is right"),
        ("assert 16 == shapes.area(2)", "a result is `16`, where `8` is right"),
        ("assert result == 16", "a result is `8`, where `16` is right"),
        ("assert wanted == shapes.area(2)", "a result is `16`, where `8` is right"),
        ("assert result == wanted", "`8` and `16` should be the same"),
        ("self.assertEqual(16, shapes.area(2))", "a result is `16`, where `8` is right"),
    ],
)
def test_the_side_that_the_test_computes_is_the_observed_one(line: str, seen: str) -> None:
    library = Library("shapes 1.0", LIBRARY.names, {"t.py": f"def test_area():\n    {line}\n"})
    check = FailedCheck("t.py::test_area", "assert 8 == 16", (("t.py", 2, "test_area"),))
    text = write_statement(library, [check], 7, place=PLACE, changed_lines=(), seed="1")
    assert text is not None
    assert seen in text


def test_of_long_texts_the_surroundings_of_the_first_difference_are_shown() -> None:
    text = write(failure(f"assert '{'a' * 90}bc{'d' * 90}' == '{'a' * 90}xy{'d' * 90}'"))
    assert f"`{'a' * 24}bc{'d' * 22}`, where `{'a' * 24}xy{'d' * 22}` is right" in text


def test_the_class_of_the_bug_is_named_only_when_the_failures_show_nothing() -> None:
    assert "`Square` in `src/shapes.py`" in write(failure("assert <object at 0x7f>"))
    assert "`Square`" not in write(failure("assert 8 == 16"))


def test_an_exception_is_blamed_on_the_function_that_the_test_entered() -> None:
    text = write(failure("KeyError: 'x'", inside=("measure", "_scale")))
    assert "# `measure`: unexpected KeyError" in text


def test_an_unexpected_exception_is_named_with_the_place_it_came_from() -> None:
    text = write(failure("TypeError: unsupported operand", inside=("area", "_scale")))
    assert "# `area`: unexpected TypeError" in text
    assert "unexpected `TypeError`, raised in `_scale` of `src/shapes.py`" in text
    assert "The error reads: unsupported operand" in text


@pytest.mark.parametrize(
    "message",
    ["Failed: DID NOT RAISE <class 'ValueError'>", "AssertionError: ValueError not raised"],
)
def test_a_missing_exception_is_described(message: str) -> None:
    text = write(failure(message, test_id=f"{MIXING}[red]", line=15))
    assert "# `mix`: no error where one is due" in text
    assert "`ValueError` should be raised, and is not" in text


def test_an_exception_type_of_another_module_is_named_by_its_last_part() -> None:
    text = write(failure("shapes.errors.BadShape: flat"))
    assert "unexpected `BadShape`" in text


def test_a_failure_inside_a_helper_still_finds_the_function_that_the_test_calls() -> None:
    text = write(failure("assert False", line=5))
    assert "`area`" in text


def test_common_method_names_are_not_taken_for_the_library() -> None:
    test_id = "tests/test_shapes.py::TestColours::test_joining"
    text = write(failure("assert 'a' == 'b'", test_id=test_id, line=18))
    assert "# `join`" in text or "# shapes 1.0" in text


def test_counts_and_subjects_are_described() -> None:
    text = write(
        failure("assert 8 == 16"),
        failure("Failed: DID NOT RAISE <class 'ValueError'>", test_id=f"{MIXING}[red]", line=15),
        failure("Failed: DID NOT RAISE <class 'ValueError'>", test_id=f"{MIXING}[blue]", line=15),
    )
    assert "3 checks fail while 7 others pass" in text
    assert '"area of a square", "mixing"' in text


def test_the_function_that_most_failures_show_comes_first() -> None:
    text = write(
        failure("assert 8 == 16"),
        failure("Failed: DID NOT RAISE <class 'ValueError'>", test_id=f"{MIXING}[red]", line=15),
        failure("Failed: DID NOT RAISE <class 'TypeError'>", test_id=f"{MIXING}[blue]", line=15),
    )
    assert text.startswith("# `mix`")


def test_equal_seeds_give_equal_texts_and_wordings_differ() -> None:
    texts = {write(failure("assert 8 == 16"), seed=str(seed)) for seed in range(20)}
    assert len(texts) > 1
    assert write(failure("assert 8 == 16"), seed="3") == write(failure("assert 8 == 16"), seed="3")


def test_a_value_that_is_a_changed_line_is_left_out() -> None:
    message = "AssertionError: 'scale = 1' != 'x'"
    assert "scale = 1" in write(failure(message))
    text = write(failure(message), changed=("    scale = 1\n",))
    assert "scale = 1" not in text
    assert "`area` gives a wrong result." in text


def test_a_message_that_quotes_the_test_is_left_out() -> None:
    text = write(failure('ValueError: side = shapes.measure("4 cm")'))
    assert "measure(" not in text
    assert "unexpected `ValueError`" in text


def test_no_statement_rather_than_one_that_gives_the_change_away() -> None:
    text = write_statement(
        LIBRARY,
        [failure("assert 8 == 16")],
        7,
        place=PLACE,
        changed_lines=["wrong result"],
        seed="1",
    )
    assert text is None


def test_lines_too_short_to_be_told_from_prose_count_as_whole_lines_only() -> None:
    assert not quotes("else: it fails", [")", "it"])
    assert quotes("before\n  it  \nafter", ["it"])
    assert quotes("say total += 1 here", ["total += 1"])


def test_public_names_are_those_without_an_underscore() -> None:
    names = public_names([b"class A:\n    def f(self): ...\n    def _g(self): ...\ndef h(): ...\n"])
    assert names == {"A", "f", "h"}
