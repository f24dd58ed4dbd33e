"""Reading and comparing answers: exact, and in doubt no."""

from __future__ import annotations

from fractions import Fraction

import pytest

from envs.gsm8k import extract_answer, parse_number


@pytest.mark.parametrize(
    "text",
    [
        "42",
        " 42 ",
        "42.0",
        "42.",
        "042",
        "42.000",
        "$42",
        r"\$42",
        "$ 42",
        "€42",
        "42 apples",
        r"42\text{ apples}",
        r"42 \text{ km}",
        r"\text{42}",
        r"\text{42 hours}",
        "42 hours",
        "x = 42",
        "the answer is 42.",
        "84/2",
        r"\frac{84}{2}",
        r"\dfrac{84}{2}",
        "$42/hour",
        "(42)",
        "(42 apples)",
        "42 apple(s)",
        r"\(42\)",
        "**42**",
        r"\textcolor{red}{42}",
        r"\textbf{\text{42}}",
        "42 €",
        r"42\text{ m}^2",
        r"42\,\mathrm{cm^2}",
        "42 m²",
        r"42^\circ",
        "42 km/h",
        "42 miles per hour",
        "Final answer: 42 apples",
        "So the answer is 42.",
        "84/2 hours",
        r"\frac{84}{2}\text{ hours}",
        "+42",
    ],
)
def test_forms_of_forty_two(text: str) -> None:
    assert parse_number(text) == 42


@pytest.mark.parametrize(
    "text",
    [
        "",
        "forty-two",
        "42%",
        r"42\%",
        "42 %",
        "42 percent",
        "-42",
        "\N{MINUS SIGN}42",
        "-$42",
        "$-42",
        "42k",
        "42K",
        "42 thousand",
        "42 million",
        "42 dozen",
        "41 or 42",
        "42, 43",
        "42,43",
        "{42, 43}",
        "4,2",
        "4 2",
        "42 42",
        "42.0.1",
        "4.2e1",
        "42e0",
        "0x2a",
        "6*7",
        "42^1",
        "10^2",
        "42²",
        "42½",
        "٤٢",
        "42 ٤",
        "42/0",
        r"\frac{42}{0}",
        r"\pm 42",
        "±42",
        "5-42",
        "42-5",
        "a42",
        "42:00",
        "nan",
        "inf",
        "∞",
        "42!",
        "about 42 people",
        ">42",
        "!= 42",
        r"\ne 42",
        r"\neg 42",
        r"\sqrt{42}",
        r"\log 42",
        r"\text{not }42",
        "-(42)",
        "minus 42",
        "negative 42",
        "half of 42",
        "42 tens",
        "42 squared",
        "42 forty",
        r"42\text{ or maybe six}",
        "42 less than the answer",
        "42 degrees below zero",
        "42x",
        "(42)x",
        r"42\cdot y",
        "(4)2",
        "42 000",
        "4(2)",
        "2x = 42",
        "42" * 200,
        "42.0000000000000000000000000000000001",
        "41.99999999999999999999999999999999999",
    ],
)
def test_what_is_not_forty_two(text: str) -> None:
    assert parse_number(text) != 42


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234", Fraction(1234)),
        ("1{,}234", Fraction(1234)),
        (r"1\,234", Fraction(1234)),
        (r"1,\!234", Fraction(1234)),
        ("$1,234,567.50", Fraction("1234567.5")),
        ("1,234.", Fraction(1234)),
        ("-3", Fraction(-3)),
        ("\N{MINUS SIGN}3", Fraction(-3)),
        (".5", Fraction(1, 2)),
        ("0.1", Fraction(1, 10)),
        ("-1/3", Fraction(-1, 3)),
        ("1 234", Fraction(1234)),
        (r"1\ 234", Fraction(1234)),
        ("1\u202f234 567", Fraction(1234567)),
        ("1 23", None),
        ("(1) 234", None),
        ("-(5)", Fraction(-5)),
        (r"-(\frac{1}{2})", Fraction(-1, 2)),
        ("--5", None),
        ("minus 5", Fraction(-5)),
        ("negative 5", Fraction(-5)),
        (r"\frac12", Fraction(1, 2)),
        (r"2\frac{1}{2}", Fraction(5, 2)),
        ("2 1/2 hours", Fraction(5, 2)),
        (r"-2\tfrac{1}{2}", Fraction(-5, 2)),
        (r"2\frac{3}{2}", None),
        ("12,34", None),
        ("1,2345", None),
        (",", None),
    ],
)
def test_groups_signs_and_fractions(text: str, value: Fraction | None) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{7}", "7"),
        (r"\boxed{6} no, \boxed{7}", "7"),
        (r"\boxed{\text{7 cats}}", r"\text{7 cats}"),
        (r"\boxed{\frac{1}{2}} ok", r"\frac{1}{2}"),
        ("work\n#### 7", "7"),
        ("#### 6\n#### 7\nbye", "7"),
        ("\\boxed{6}\n#### 7", "7"),
        ("#### 6\n\\boxed{7}", "7"),
        (r"\boxed{}", ""),
        (r"\boxed {7}", "7"),
        (r"so \boxed 7.", "7."),
        (r"\fbox{7}", "7"),
        ("\\boxed{7}\n\n#### Verification\nAll good.", "7"),
        ("\\boxed{7}\n##### 8", "7"),
        ("\\boxed{7}\n```\n#### done\n```", "7"),
        ("\\boxed{7} (see #### in the code)", "7"),
        ("#### **7**", "**7**"),
        ("#### seven", "seven"),
        (r"\boxed{7", None),
        ("7", None),
        ("", None),
    ],
)
def test_the_last_answer_wins(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


def test_hostile_text_is_read_in_linear_time() -> None:
    assert extract_answer(r"\boxed{" * 50_000) is None
    assert parse_number("1," * 90) is None
    assert parse_number("9" * 199) is not None
    assert extract_answer("".join(f"#### {n} or\n" for n in range(100_000))) == "99999 or"


@pytest.mark.parametrize(
    "part", ["a ", "a-", "(", "1 234", "/m", "m^2 ", r"\text{", " ", "1/", "$"]
)
def test_hostile_numbers_are_read_in_linear_time(part: str) -> None:
    text = part * 500
    assert all(parse_number(text[:size]) is None for size in range(150, 201))


def test_a_box_longer_than_any_answer_is_none() -> None:
    assert extract_answer("\\boxed{" + "x" * 201 + "}") is None
    assert extract_answer("\\boxed{" + "x" * 200 + "}") == "x" * 200
