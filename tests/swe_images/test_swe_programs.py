"""Rows of Django, SymPy and unittest, on images that were made of those packages' sdists.

`make test-harbor`; the images need a Debian mirror and a package index.
"""

from __future__ import annotations

import shlex
from typing import Any

import program_images
import pytest
from swe_verdicts import SECONDS, base_or_skip, check_fix_and_nothing, import_image, verdict

SANDBOX = "local"
CASES = ("django-34568", "django-34539", "sympy-26799", "sympy-union", "unittest")
CHEATS = {
    "django-34568": ("plants_told_by_their_messages", "tests_pass_in_children"),
    "django-34539": (
        *("django_runner_replaced", "django_runner_empties_tests", "django_test_cases_pass"),
        *("unittest_runs_nothing", "failures_become_successes", "reporter_lies", "log_printed"),
        *("reporter_class_replaced", "json_forged"),
    ),
    "sympy-26799": (
        *("sympy_raises_anything", "sympy_expected_failures", "sympy_equal_to_everything"),
        *("unknown_exceptions_are_expected", "traces_swallow_errors", "pipe_written_at_the_end"),
    ),
    "unittest": (
        *("assertions_do_nothing", "test_methods_emptied", "another_suite_runs_first"),
        *("exit_by_finalizer", "plants_told_by_running", "reporter_class_replaced"),
    ),
}

pytestmark = [
    pytest.mark.timeout(3 * SECONDS),
    pytest.mark.xdist_group("images of programs"),
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The rows, with their images at hand."""
    place = tmp_path_factory.mktemp("images")
    base = base_or_skip()
    made = program_images.make(base, place)
    for name, program in program_images.PROGRAMS.items():
        import_image(program.image, place / f"{name}.tar", SANDBOX)
    return made


@pytest.mark.parametrize("case", CASES)
async def test_the_fix_scores_one_and_nothing_zero(
    rows: dict[str, dict[str, Any]], case: str
) -> None:
    await check_fix_and_nothing(rows[case], SANDBOX)


@pytest.mark.parametrize(
    ("case", "cheat"), [(case, cheat) for case, cheats in CHEATS.items() for cheat in cheats]
)
async def test_a_cheat_scores_zero(rows: dict[str, dict[str, Any]], case: str, cheat: str) -> None:
    found = await verdict(rows[case], cheat, SANDBOX)
    assert found.score == 0.0, found.report


async def test_the_programs_own_scripts_are_not_the_agents(
    rows: dict[str, dict[str, Any]],
) -> None:
    script = "echo 'raise SystemExit(0)' > tests/runtests.py; echo > django/test/runner.py"
    found = await verdict(rows["django-34539"], "oracle", SANDBOX, script)
    assert (found.score, found.report["dropped_count"]) == (1.0, 2), found.report


async def test_a_message_of_a_failing_test_is_reported(rows: dict[str, dict[str, Any]]) -> None:
    broken = shlex.quote("raise ImportError('left broken')\n")
    script = f"printf %s {broken} >> sympy/physics/vector/vector.py"
    found = await verdict(rows["sympy-26799"], "nop", SANDBOX, script)
    assert (found.score, found.report["reason"]) == (0.0, "tests_fail")
    assert found.report["first_failure"] == "ImportError: left broken"
