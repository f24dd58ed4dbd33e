"""Cheats are real programs: a lie that does not run would prove nothing about grading."""

from __future__ import annotations

import pytest

from envs.swe.cheats.lies import FORCE_PASSED, REWRITER, package_lies

IDS = ("tests/test_a.py::test_x", "tests/test_b.py::test_y[\N{SNOWMAN}-'\"\\n]")
LIES = {
    **{
        f"{name} of {program}": code
        for program in ("pytest", "unittest", "django", "sympy")
        for name, code in package_lies(IDS, program).items()
    },
    "plugin": FORCE_PASSED,
    "rewriter": REWRITER,
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_python_and_knows_the_tests(name: str) -> None:
    compile(LIES[name], name, "exec")
    assert "in IDS" not in LIES[name]


def test_a_lie_does_nothing_outside_of_a_test_run() -> None:
    for code in package_lies(IDS).values():
        guard, body = code.strip().splitlines()[1:3], code.strip().splitlines()[3:]
        assert guard[0] == 'if "pytest" in sys.modules:'
        assert all(not line or line.startswith("    ") for line in [*guard[1:], *body])
