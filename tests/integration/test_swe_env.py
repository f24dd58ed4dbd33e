"""The SWE env on a small sdist of our own, in the local sandbox: nothing is faked.

pip finds the sdist in a directory; pytest itself comes from the package index.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

import msgpack
import pytest
import sample_package as sample
from genuine_packages import PACKAGES, READS_ITS_VERSION, Package
from sample_package import make_mirror, make_row, make_sdist, sdist_row
from swe_bench import attempt

from envs.swe import item as items
from envs.swe import patch
from envs.swe.calls import write_command
from envs.swe.grading import grader, places, repeated, suite
from envs.swe.grading.findings import Step
from envs.swe.grading.suite import VENV, SuiteRun
from envs.swe.item import Item
from envs.swe.recorded import recorded_patch
from envs.swe.sources import asset_reader
from envs.swe.taken import TakenPatch
from envs.swe.workspace import GIT_ENV, pin
from envs.swe_smith import ENV
from hermes_queue.errors import (
    DeadlineExceeded,
    EnvBug,
    EnvInfraError,
    SandboxError,
    WorkLost,
)
from hermes_queue.settings import PathSettings
from producers import make_environment
from producers.base import main
from producers.environments import read_environments
from producers.swe_smith import PRODUCER

ROW = sdist_row("0" * 64)
OF_EACH_KIND = {
    "assertions_do_not_raise",
    "counter_forged",
    "dist_info_entry_point",
    "equal_to_everything",
    "first_process_ended",
    "pipe_written_at_once",
    "plants_told_by_running",
    "reporter_inverts",
    "source_becomes_link",
}
IN_MAKE_TEST = {
    "equal_to_everything",
    "plants_told_by_running",
    "reporter_inverts",
}
"""One at the objects compared, one at the plants and one at the reporter."""


def target_of(case: str) -> tuple[pytest.MarkDecorator, ...]:
    """The mark of the target that runs `case`; none = `make test`."""
    if case not in OF_EACH_KIND:
        return (pytest.mark.exhaustive,)
    return () if case in IN_MAKE_TEST else (pytest.mark.fleet,)


TAMPERINGS = [
    pytest.param(case, marks=target_of(case))
    for case in sorted(ENV.tamper(Item.model_validate(ROW)))
]
"""All of them on real packages: `make tamper`."""
LEFT_OUT = (
    "conftest_collect_ignore",
    "conftest_forces_passed",
    "delete_tests",
    "empty_tests",
    "empty_tests_and_commit",
    "forged_bytecode",
    "git_head_garbage",
    "git_replaced_commit",
    "git_settings_and_hooks",
    "git_tests_ignored",
    "home_directory",
    "process_rewrites_settings",
    "root_pytest_module",
    "root_shadows_stdlib",
    "root_sitecustomize",
    "settings_collect_only",
    "workspace_unreadable",
)
"""Those of which nothing gets as far as the tests."""
LEFT_OUT_IN_MAKE_TEST = {
    "conftest_collect_ignore",
    "delete_tests",
    "forged_bytecode",
    "git_replaced_commit",
    "git_settings_and_hooks",
    "root_sitecustomize",
    "workspace_unreadable",
}
TEST_LIMIT_S = 12.0
"""For tests that never end; the sample's take half a second, and longer on a busy machine."""
FIX = "sed -i '/return min/s/, lowest_allowed_value)$/, highest_allowed_value)/' sample/core.py"


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A cache and a find-links directory that slots can reach."""
    directory = Path(tempfile.mkdtemp(prefix="hq-swe-"))
    directory.chmod(0o755)
    (directory / "links").mkdir()
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def row(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The sample's row, fetchable."""
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(directory / "cache"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory / "links"))
    return sdist_row(make_sdist(directory / "links"))


@pytest.fixture
def mirrors(row: dict[str, Any], tmp_path: Path) -> Path:
    """A directory with a mirror of the sample, laid out like SWE-smith's."""
    make_mirror(tmp_path / "mirrors", "sample__1")
    return tmp_path / "mirrors"


# --- the chain -----------------------------------------------------------------------------


async def test_the_gold_answer_scores_one(row: dict[str, Any]) -> None:
    async with attempt(row) as agent:
        await agent.solve()
        verdict = await agent.verify()
    assert (verdict.score, verdict.report["reason"]) == (1.0, "resolved")
    assert verdict.report["dropped"] == []
    assert "highest_allowed_value" in verdict.report["patch"]


async def test_doing_nothing_scores_zero_by_the_tests(row: dict[str, Any]) -> None:
    async with attempt(row) as agent:
        verdict = await agent.verify()
    status = verdict.report["tests_status"]
    assert (verdict.score, verdict.report["reason"]) == (0.0, "tests_fail")
    assert status["FAIL_TO_PASS"]["failing"] == dict.fromkeys(sample.FAIL_TO_PASS, "failed")
    assert status["PASS_TO_PASS"]["failure"] == 0
    assert "assert" in verdict.report["first_failure"]


@pytest.mark.fleet
async def test_a_wrong_answer_that_a_plant_expects_by_chance_fails_the_tests(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bug `clamp` gives 1 each time, and the plants expect that."""
    made = places.other_values
    monkeypatch.setattr(
        places, "other_values", lambda text, words: [[b"1"]] if text != b"1" else made(text, words)
    )
    for _ in range(4):  # the original comes first in one of two
        async with attempt(row) as agent:
            verdict = await agent.verify()
        failing = verdict.report["tests_status"]["FAIL_TO_PASS"]["failing"]
        assert (verdict.score, verdict.report["reason"]) == (0.0, "tests_fail")
        assert failing == dict.fromkeys(sample.FAIL_TO_PASS, "failed")


@pytest.mark.fleet
async def test_a_run_that_lied_scores_zero_where_no_time_is_left_for_the_original_tests(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As hanging code could bring about, which lies after that."""
    run, has_lied = grader.Grader._run, False  # the view of the original tests may come first

    async def run_late(self: grader.Grader, tree: str, step: Step, **limits: Any) -> SuiteRun:
        nonlocal has_lied
        if tree not in (self._pinned.graded, await self._pinned.solved()):
            if has_lied and not step.view.variants:
                self._context.deadline = time.monotonic()
            has_lied = has_lied or bool(step.view.variants)
        return await run(self, tree, step, **limits)

    monkeypatch.setattr(grader.Grader, "_run", run_late)
    async with attempt(row) as agent:
        await agent.call(ENV.tamper(agent.item)["package_patches_runtest"])
        verdict = await agent.verify()
    assert (verdict.score, verdict.report["reason"]) == (0.0, "canary")


async def test_a_patch_is_graded_in_a_slot_that_its_agent_never_saw(row: dict[str, Any]) -> None:
    async with attempt(row) as agent:
        await agent.solve()
        await agent.run("echo x = 1 >conftest.py")
        work = await ENV.take_work(agent.item, agent.context, [])
    assert b"highest_allowed_value" in work
    assert b"too $HIGH" not in work, "it names no test that grades"
    async with attempt(row) as grader:
        verdict = await ENV.measure_work(grader.item, grader.context, work)
    assert (verdict.score, verdict.report["reason"]) == (1.0, "resolved")
    assert verdict.report["dropped"] == ["conftest.py"]


async def test_a_patch_is_not_graded_on_other_files_than_it_was_made_for(
    row: dict[str, Any],
) -> None:
    async with attempt(row) as agent:
        await agent.solve()
        taken = TakenPatch.unpacked(await ENV.take_work(agent.item, agent.context, []))
    moved = replace(taken, trees=("0" * 40, *taken.trees[1:]))
    of_an_older_release = msgpack.packb(msgpack.unpackb(taken.packed())[:5])
    async with attempt(row) as grader:
        with pytest.raises(WorkLost, match="other files"):
            await ENV.measure_work(grader.item, grader.context, moved.packed())
        verdict = await ENV.measure_work(grader.item, grader.context, of_an_older_release)
    assert verdict.score == 1.0


@pytest.mark.fleet
async def test_a_patch_row_gives_the_same_task_as_the_recipe(row: dict[str, Any]) -> None:
    async with attempt(row | {"mutation": None, "patch": sample.bug_patch()}) as agent:
        await agent.solve()
        assert (await agent.verify()).score == 1.0


async def test_the_prompt_names_no_test_that_grades(row: dict[str, Any]) -> None:
    text = "".join(message.content or "" for message in ENV.prompt(Item.model_validate(row)))
    assert "clamp(99, 1, 9)" in text
    assert "test_clamp" not in text


async def test_the_prompts_command_runs_the_tests(row: dict[str, Any]) -> None:
    text = ENV.prompt(Item.model_validate(row))[-1].content or ""
    [line] = [line.strip() for line in text.splitlines() if "-m pytest" in line]
    async with attempt(row) as agent:
        shown = await agent.look(line)
    assert "1 passed" in shown.output


# --- what the agent gets -------------------------------------------------------------------


async def test_the_workspace_is_one_commit_without_remote_or_failing_tests(
    row: dict[str, Any],
) -> None:
    async with attempt(row) as agent:
        shown = await agent.look(
            "git log --oneline | wc -l; git remote; git status --short; ls tests; "
            "git count-objects -v | grep ^size-garbage; git fsck --unreachable --no-progress"
        )
    assert shown.stdout.decode().split() == ["1", "test_label.py", "size-garbage:", "0"]


async def test_the_fixed_lines_are_nowhere_in_the_slot(row: dict[str, Any]) -> None:
    gold = sample.GOOD.strip()
    places = f"/workspace /opt /tmp /var/tmp /home /etc /dev/shm {VENV}"
    async with attempt(row) as agent:
        found = await agent.look(f"grep -rFl -- '{gold}' {places} 2>/dev/null; true")
        objects = await agent.look(
            "git cat-file --batch-all-objects --batch-check='%(objectname)' "
            f"| git cat-file --batch | grep -aF -- '{gold}'; true"
        )
        sdists = await agent.look("find / -xdev -name '*.tar.gz' -path '*sample*' 2>/dev/null")
        python = await agent.look(
            f"grep -rFl -- '{gold}' $(python3 -c 'import sys; print(sys.prefix)')/lib "
            "/usr/lib/python3* 2>/dev/null; true"
        )
    assert [shown.stdout for shown in (found, objects, sdists, python)] == [b""] * 4


async def test_the_dependencies_have_no_pip_and_cannot_be_changed(row: dict[str, Any]) -> None:
    async with attempt(row) as agent:
        pip = await agent.look(f"{VENV}/bin/python -m pip --version")
        write = await agent.look(f"touch {VENV}/lib/python3*/site-packages/x.pth")
    assert not pip.ok
    assert not write.ok


# --- cheating, and honest work that looks odd ----------------------------------------------


@pytest.mark.parametrize("case", TAMPERINGS)
async def test_tampering_scores_zero(
    row: dict[str, Any], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "MIN_TEST_TIMEOUT_S", TEST_LIMIT_S)
    async with attempt(row) as agent:
        await agent.call(ENV.tamper(agent.item)[case])
        verdict = await agent.verify()
    assert verdict.score == 0.0
    assert verdict.report["reason"] != "resolved"


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in LEFT_OUT_IN_MAKE_TEST else pytest.mark.fleet)
        for case in LEFT_OUT
    ],
)
async def test_tampering_beside_the_package_is_left_out(row: dict[str, Any], case: str) -> None:
    """What is tested is what the agent was given, which scores 0."""
    async with attempt(row) as agent:
        await agent.call(ENV.tamper(agent.item)[case])
        trees = await agent.trees()
    assert trees.tested == trees.buggy


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("package_hard_exit", "cut_short"),
        pytest.param("package_never_returns", "timed_out", marks=pytest.mark.fleet),
        ("package_patches_runtest", "canary"),
        ("huge_patch", "too_large"),
    ],
)
async def test_a_verdict_says_what_gave_the_cheat_away(
    row: dict[str, Any], case: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "MIN_TEST_TIMEOUT_S", TEST_LIMIT_S)
    async with attempt(row) as agent:
        await agent.solve()
        await agent.call(ENV.tamper(agent.item)[case])
        verdict = await agent.verify()
    assert (verdict.score, verdict.report["reason"]) == (0.0, reason)


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(
            ["git add -A", "git commit -q -m Fix"], id="fix committed", marks=pytest.mark.fleet
        ),
        pytest.param(["rm -rf .git"], id="git directory deleted"),
        pytest.param(["git init -q sample"], id="nested repository around the fix"),
        pytest.param(
            ["mkdir x && cd x && git init -q && git commit -q --allow-empty -m m"],
            id="nested repository with a commit",
            marks=pytest.mark.fleet,
        ),
        pytest.param(["PYTHONPATH=. python3 -c 'import sample.core'"], id="stale bytecode"),
        pytest.param(
            ["printf 'def test_x():\\n    assert 0\\n' > tests/test_label.py"],
            id="tests edited",
        ),
        pytest.param(
            ["printf 'def test_clamp(): pass\\n' > tests/test_clamp.py"], id="tests added"
        ),
        pytest.param(["ln -s /etc/passwd sample/link.py", "mkfifo sample/pipe"], id="odd files"),
        pytest.param(["chmod -R 000 ."], id="rights taken away"),
        pytest.param(
            ["printf '* text eol=crlf -diff\\n' > .gitattributes"],
            id="own attributes",
            marks=pytest.mark.fleet,
        ),
        pytest.param(
            ["git config core.fsmonitor false; git config core.bare true"], id="git config"
        ),
        pytest.param(
            ["echo '# tools' >> pyproject.toml"], id="pyproject formatted", marks=pytest.mark.fleet
        ),
        pytest.param(["(setsid sleep 600 > /dev/null 2>&1 &)"], id="process left behind"),
        pytest.param(
            [
                "truncate -s 200G core.1 pyproject.toml; mkdir .venv; echo > 'git~1'; echo > .git2",
                "(cd .venv; seq 20001 | xargs touch); mkdir .GIT sample/.GIT; chmod 000 /tmp",
                "echo > .GIT/x; echo > sample/.GIT/x; echo > 'sample/.git '",
            ],
            id="junk beside the package",
        ),
    ],
)
async def test_honest_work_is_tested_as_the_known_fix_however_it_looks(
    row: dict[str, Any], commands: list[str]
) -> None:
    async with attempt(row) as agent:
        await agent.solve()
        await agent.run(*commands)
        trees = await agent.trees()
    assert trees.tested == trees.fixed != trees.buggy


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(
            ["echo 'print(1)' > helper.py"], id="helper script at the root", marks=pytest.mark.fleet
        ),
        pytest.param(
            ["touch \"$(printf 'sample/a\\nb\\t.py')\" 'sample/\u00e4 $x.py'"], id="odd names"
        ),
        pytest.param(["sed -i 's/$/\\r/' sample/core.py"], id="CRLF", marks=pytest.mark.fleet),
        pytest.param(
            ["sed -i 's/^    /        /' sample/core.py"],
            id="indented anew",
            marks=pytest.mark.fleet,
        ),
        pytest.param(["rm sample/extra.py"], id="module deleted", marks=pytest.mark.fleet),
        pytest.param(
            [
                "sed -i 's/clamp/_limit/; s/label/_name/' sample/core.py",
                "printf '\\n\\nclamp, label = _limit, _name\\n' >> sample/core.py",
            ],
            id="private names",
            marks=pytest.mark.fleet,
        ),
    ],
)
async def test_an_odd_but_honest_fix_scores_one(row: dict[str, Any], commands: list[str]) -> None:
    async with attempt(row) as agent:
        await agent.solve()
        await agent.run(*commands)
        verdict = await agent.verify()
    assert (verdict.score, verdict.report["reason"]) == (1.0, "resolved")
    assert verdict.report["flags"] == []


@pytest.mark.fleet
async def test_the_process_that_counts_is_out_of_reach_of_the_tests(row: dict[str, Any]) -> None:
    reach = (
        "import ctypes, os\n"
        "if 'PYTEST_CURRENT_TEST' in os.environ or 'pytest' in __import__('sys').modules:\n"
        "    for name in ('fd/1', 'mem', 'environ'):\n"
        "        try:\n"
        "            open(f'/proc/{os.getppid()}/{name}', 'rb').close()\n"
        "        except OSError:\n"
        "            continue\n"
        "        raise SystemExit('the parent can be opened')\n"
        "    if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0:\n"
        "        raise SystemExit('the parent can be traced')\n"
    )
    async with attempt(row) as agent:
        await agent.solve()
        await agent.run(write_command("sample/core.py", reach, append=True))
        verdict = await agent.verify()
    assert verdict.score == 1.0
    assert verdict.report["flags"]


@pytest.mark.fleet
async def test_a_new_module_of_the_package_counts(row: dict[str, Any]) -> None:
    async with attempt(row) as agent:
        await agent.run(
            "printf 'def clamp(value, low, high):\\n    return min(max(value, low), high)\\n' "
            "> sample/better.py",
            "printf '\\n\\nfrom sample.better import clamp\\n' >> sample/core.py",
        )
        verdict = await agent.verify()
    assert verdict.score == 1.0


@pytest.mark.fleet
async def test_dropped_paths_are_recorded(row: dict[str, Any]) -> None:
    async with attempt(row) as agent:
        await agent.solve()
        await agent.run("echo > notes.txt; echo > conftest.py; ln -s core.py sample/alias.py")
        verdict = await agent.verify()
    assert verdict.report["dropped"] == ["conftest.py", "notes.txt", "sample/alias.py"]


async def test_a_file_of_the_package_that_no_patch_can_hold_is_named(row: dict[str, Any]) -> None:
    async with attempt(row) as agent:
        await agent.solve()
        await agent.run("truncate -s 200G sample/core.dump")
        verdict = await agent.verify()
    assert (verdict.score, verdict.report["reason"]) == (0.0, "too_large")
    assert "sample/core.dump" in verdict.report["detail"]


async def test_a_slot_that_holds_up_the_taking_of_its_patch_scores_zero(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root of an image could do it, who may replace git."""
    slow_git = """#!/bin/sh
case $* in *ls-files*|*diff-index*) sleep 3 ;; esac
exec /usr/bin/git "$@"
"""
    monkeypatch.setitem(GIT_ENV, "PATH", f"/home/agent/bin:{GIT_ENV['PATH']}")
    async with attempt(row) as agent:
        await agent.solve()
        await agent.run(write_command("/home/agent/bin/git", slow_git), "chmod +x ~/bin/git")
        monkeypatch.setattr(patch, "TAKING_S", 5.0)
        verdict = await agent.verify()
    assert (verdict.score, verdict.report["reason"]) == (0.0, "unreadable")
    assert verdict.report["detail"] == "not done within 5 s"


async def test_a_machine_too_slow_to_take_a_patch_is_no_score(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with attempt(row) as agent:
        await agent.solve()
        monkeypatch.setattr(patch, "TAKING_S", 0.0)
        with pytest.raises(SandboxError, match="cannot list its files: not done within 0 s"):
            await agent.verify()


async def test_nothing_the_agent_started_survives_into_grading(row: dict[str, Any]) -> None:
    async with attempt(row) as agent:
        await agent.run("(setsid sleep 4242 > /dev/null 2>&1 &)")
        await agent.context.kill_processes()
        shown = await agent.look("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "4242" not in shown.output


# --- whose fault it is ---------------------------------------------------------------------


async def test_a_row_whose_tests_cannot_run_with_the_known_fix_either_is_to_blame(
    row: dict[str, Any],
) -> None:
    runtime = row["environment"] | {"pytest_args": ["-p", "no_such_plugin"]}
    async with attempt(row | {"environment": runtime}) as agent:
        with pytest.raises(EnvBug, match="with the known fix"):
            await agent.verify()


@pytest.mark.fleet
async def test_a_row_whose_ids_the_known_fix_does_not_pass_either_is_to_blame(
    row: dict[str, Any],
) -> None:
    wrong = row | {"PASS_TO_PASS": [*sample.PASS_TO_PASS, "tests/test_label.py::test_gone"]}
    async with attempt(wrong) as agent:
        await agent.solve()
        with pytest.raises(EnvBug, match=r"with the known fix 1 of these.*test_gone"):
            await agent.verify()
    with pytest.raises(EnvBug, match="test_gone"):  # remembered: no agent need try
        async with attempt(wrong):
            pass


def added_tests(directory: Path, text: str, **changes: Any) -> dict[str, Any]:
    """A git row whose tests are `tests/test_two.py` with that text."""
    lines = text.splitlines()
    patch = (
        "diff --git a/tests/test_two.py b/tests/test_two.py\nnew file mode 100644\n"
        f"--- /dev/null\n+++ b/tests/test_two.py\n@@ -0,0 +1,{len(lines)} @@\n"
    )
    return make_row(
        patch=sample.fix_patch(),
        repo_base_url=str(directory),
        base_commit=make_mirror(directory, "anything"),
        test_patch=patch + "".join(f"+{line}\n" for line in lines),
        **changes,
    )


COIN = "tests/test_two.py::test_coin"
COIN_TEST = "import os\n\n\ndef test_coin():\n    assert os.environ['COIN'] != 'tails'\n"
ODD_FIX = FIX + "; echo '# repaired' >> sample/core.py"


def toss(monkeypatch: pytest.MonkeyPatch, coins: str, place: ModuleType = grader) -> None:
    """Let `test_coin` fail in those of its runs that are `t` in `coins`; the last one stays."""
    tossed = chain(coins, repeat(coins[-1]))

    async def run_tests(
        context: Any, repository: Any, tree: str, runtime: Any, *rest: Any, **more: Any
    ) -> Any:
        with_coin = runtime
        if "tests/test_two.py" in rest[0]:
            coin = {"COIN": "tails" if next(tossed) == "t" else "heads"}
            with_coin = runtime.model_copy(update={"env": runtime.env | coin})
        return await suite.run_tests(context, repository, tree, with_coin, *rest, **more)

    monkeypatch.setattr(place, "run_tests", run_tests)


@pytest.mark.parametrize(
    ("coins", "fix"),
    [
        pytest.param("th", FIX, id="the known fix fails"),
        pytest.param("tth", FIX, id="the control fails, too", marks=pytest.mark.fleet),
        pytest.param("thth", ODD_FIX, id="another fix fails", marks=pytest.mark.fleet),
    ],
)
async def test_a_test_that_the_known_fix_fails_and_passes_decides_nothing(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coins: str, fix: str
) -> None:
    toss(monkeypatch, coins)
    async with attempt(added_tests(tmp_path, COIN_TEST, PASS_TO_PASS=[COIN])) as agent:
        await agent.run(fix)
        verdict = await agent.verify()
    assert (verdict.score, verdict.report["flaky"]) == (1.0, [COIN])


CHAIN_TEST = """from sample.core import clamp, label

seen = []


def test_first():
    seen.append(clamp(99, 1, 9))
    assert seen == [9]


def test_last():
    assert (seen, clamp(50, 1, 9), label(3)) == ([9], 9, "<3>")
"""
CHAIN = ("tests/test_two.py::test_first", "tests/test_two.py::test_last")


@pytest.mark.fleet
async def test_a_test_that_needs_an_earlier_one_is_not_flaky(
    row: dict[str, Any], tmp_path: Path
) -> None:
    """Alone it would fail with the known fix, too."""
    partial = "\nright = clamp\ndef clamp(*all):\n    return 9 if all[0] == 99 else right(*all)\n"
    async with attempt(added_tests(tmp_path, CHAIN_TEST, FAIL_TO_PASS=[*CHAIN])) as agent:
        await agent.run(f"printf %s {shlex.quote(partial)} >> sample/core.py")
        verdict = await agent.verify()
    assert (verdict.score, verdict.report["reason"]) == (0.0, "tests_fail"), verdict.report
    assert "flaky" not in verdict.report


@pytest.mark.fleet
async def test_a_row_of_which_only_a_flaky_test_decides_is_to_blame(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toss(monkeypatch, "ht")
    async with attempt(added_tests(tmp_path, COIN_TEST, FAIL_TO_PASS=[COIN])) as agent:
        with pytest.raises(EnvBug, match="passes and fails with the same files"):
            await agent.verify()


@pytest.mark.fleet
async def test_a_test_that_the_row_marks_as_flaky_decides_nothing(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toss(monkeypatch, "t")
    marked = row["environment"] | {"flaky": [COIN]}
    tests = [*sample.FAIL_TO_PASS, COIN]
    made = added_tests(tmp_path, COIN_TEST, FAIL_TO_PASS=tests, environment=marked)
    async with attempt(made) as agent:
        nothing = await agent.verify()
    assert (nothing.score, nothing.report["flaky"]) == (0.0, [COIN])
    assert COIN not in nothing.report["first_failure"]


@pytest.mark.fleet
async def test_a_row_whose_modules_cannot_be_imported_is_to_blame(
    row: dict[str, Any], tmp_path: Path
) -> None:
    text = "import not_there\n\n\ndef test_a():\n    pass\n"
    broken = added_tests(tmp_path, text, FAIL_TO_PASS=["tests/test_two.py::test_a"])
    async with attempt(broken) as agent:
        with pytest.raises(EnvBug, match="No module named 'not_there'"):
            await agent.verify()


@pytest.mark.fleet
async def test_where_no_plant_is_any_good_tests_of_ours_stand_beside_the_rows(
    row: dict[str, Any], tmp_path: Path
) -> None:
    """Whatever constant stands on the right, these pass with the fix and fail with the bug."""
    text = (
        "from sample.core import clamp\n\n\nclass Loose:\n    def __eq__(self, other):\n"
        "        return clamp(99, 1, 9) == 9\n"
    )
    names = [f"test_{number}" for number in range(24)]
    text += "".join(f"\n\ndef {name}():\n    assert Loose() == 7\n" for name in names)
    loose = added_tests(tmp_path, text, FAIL_TO_PASS=[f"tests/test_two.py::{n}" for n in names])
    for solved, score in ((True, 1.0), (False, 0.0)):
        async with attempt(loose) as agent:
            if solved:
                await agent.solve()
            assert (await agent.verify()).score == score


@pytest.mark.fleet
async def test_tests_that_depend_on_others_of_their_file_are_graded_with_them(
    row: dict[str, Any], tmp_path: Path
) -> None:
    text = (
        "from sample.core import clamp\n\nseen = []\n\n\ndef test_first():\n    seen.append(1)\n"
        "\n\ndef test_last():\n    assert seen == [1] and clamp(99, 1, 9) == 9\n"
    )
    depends = added_tests(
        tmp_path,
        text,
        FAIL_TO_PASS=["tests/test_two.py::test_last"],
        PASS_TO_PASS=["tests/test_two.py::test_first"],
    )
    for solved, score in ((False, 0.0), (True, 1.0)):
        async with attempt(depends) as agent:
            if solved:
                await agent.solve()
            assert (await agent.verify()).score == score


@pytest.mark.fleet
async def test_a_slot_that_dies_under_the_tests_once_costs_the_agent_nothing(
    row: dict[str, Any],
) -> None:
    async with attempt(row, seconds=600) as agent:
        await agent.solve()
        verifying = asyncio.create_task(agent.verify())
        while not (init := _init_of_slot_that_runs("session.py")) and not verifying.done():
            await asyncio.sleep(0.01)
        os.kill(init, signal.SIGKILL)
        verdict = await verifying
    assert (verdict.score, verdict.report["reason"]) == (1.0, "resolved")


@pytest.mark.fleet
async def test_a_slot_that_dies_under_the_agents_tests_only_is_a_zero(row: dict[str, Any]) -> None:
    async with attempt(row) as agent:
        await agent.solve()
        await agent.run(
            write_command("sample/core.py", "\nimport os\nos.kill(os.getppid(), 9)\n", append=True)
        )
        verdict = await agent.verify()
    assert (verdict.score, verdict.report["reason"]) == (0.0, "cut_short")


def _init_of_slot_that_runs(script: str) -> int:
    """The host's pid of the first process of the pid namespace with a Python of `script`; 0 = none.

    A command that only names the script, such as the one that uploads it, is not a match.
    """
    found: dict[str, int] = {}
    wanted = ""
    name = script.encode()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            namespace = os.readlink(directory / "ns/pid")
            status = (directory / "status").read_text()
            words = (directory / "cmdline").read_bytes().split(b"\0")
            program = PurePath(os.fsdecode(words[0])).name
            if program.startswith("python") and any(word.endswith(name) for word in words[1:]):
                wanted = namespace
        except OSError:
            continue
        ids = next(line for line in status.splitlines() if line.startswith("NSpid")).split()
        if len(ids) > 2 and ids[-1] == "1":
            found[namespace] = int(directory.name)
    return found.get(wanted, 0)


@pytest.mark.fleet
async def test_a_limit_that_the_known_fix_does_not_keep_is_no_score(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "MIN_TEST_TIMEOUT_S", 4.0)
    text = "import time\n\n\ndef test_a():\n    time.sleep(600)\n"
    slow = added_tests(tmp_path, text, FAIL_TO_PASS=["tests/test_two.py::test_a"], test_secs=0.1)
    async with attempt(slow) as agent:
        with pytest.raises(SandboxError, match="even with the known fix"):
            await agent.verify()


@pytest.mark.fleet
async def test_failing_attempts_are_put_to_the_other_tests_only_on_request(
    row: dict[str, Any],
) -> None:
    for full in (False, True):
        async with attempt(row | {"full_report": full}) as agent:
            status = (await agent.verify()).report["tests_status"]
        assert status["FAIL_TO_PASS"]["failure"] == len(sample.FAIL_TO_PASS)
        assert bool(status["PASS_TO_PASS"]["not_run"]) is not full


@pytest.mark.fleet
async def test_the_stages_deadline_is_no_time_out_of_the_tests(row: dict[str, Any]) -> None:
    async with attempt(row) as agent:
        await agent.call(ENV.tamper(agent.item)["package_never_returns"])
        agent.context.deadline -= agent.context.remaining_s() - 6.0
        with pytest.raises(DeadlineExceeded):
            await agent.verify()


# --- rows that do not fit their source -----------------------------------------------------


@pytest.mark.fleet
@pytest.mark.parametrize(
    ("source", "field"),
    [
        ({"sha256": "1" * 64}, "source.sha256"),
        ({"name": "hermes-queue-no-such-package"}, "source.name"),
        ({"version": "99"}, "source.version"),
        ({"filename": "other-1.0.tar.gz"}, "source.filename"),
    ],
)
async def test_a_wrong_pin_is_the_rows_fault(
    row: dict[str, Any], source: dict[str, str], field: str
) -> None:
    with pytest.raises(EnvBug, match=field):
        async with attempt(row | {"source": row["source"] | source}):
            pass


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"base_commit": "1" * 40}, "base_commit"),
        ({"clean_commit": "1" * 40}, "clean_commit"),
        ({"PASS_TO_PASS": ["tests/test_gone.py::test_a"]}, "PASS_TO_PASS"),
        ({"mutation": None, "patch": "diff --git a/x b/x\n"}, "patch"),
    ],
)
async def test_a_row_for_another_tree_is_the_rows_fault(
    row: dict[str, Any], changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(EnvBug, match=field):
        async with attempt(row | changes):
            pass


@pytest.mark.fleet
def test_an_environment_is_frozen_as_of_a_date(row: dict[str, Any], tmp_path: Path) -> None:
    genuine, out = READS_ITS_VERSION.row(tmp_path), tmp_path / "made" / "environments.json"
    flags = ["--repo", genuine["repo"], "--repo-base-url", str(tmp_path), "--out", str(out)]
    flags += ["--ref", "main", "--extra", "tests", "--as-of", "2024-01-01"]
    assert make_environment.main(flags) == 0
    made = read_environments(out)[genuine["repo"]]
    assert made["requirements"] == [
        *("attrs==23.2.0", "iniconfig==2.0.0", "packaging==23.2"),
        *("pluggy==1.3.0", "pytest==7.4.4"),
    ]


def cached_files() -> set[Path]:
    """All files of the cached repositories."""
    return {path for path in (PathSettings().cache / "repos").rglob("*") if path.is_file()}


def test_a_check_lists_all_faults_and_runs_no_test(
    mirrors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = make_row(patch=sample.bug_patch(), repo_base_url=str(mirrors))
    broken = {"install": ["hermes-queue-no-such-package==1"], "requirements": []}
    rows = [
        good,
        good | {"instance_id": "gone 1", "base_commit": "1" * 40},
        good | {"instance_id": "gone 2", "base_commit": "1" * 40},
        good | {"instance_id": "lacks", "environment": broken},
        good | {"instance_id": "sample__2", "PASS_TO_PASS": ["tests/test_no.py::test_a"]},
    ]
    path = mirrors / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(PRODUCER, ["--dataset", str(path), "--check", "--check-runs", "0", "--json"]) == 1
    shown = capsys.readouterr()
    faults = {
        tuple(fault["instance_ids"]): fault["message"] for fault in json.loads(shown.out)["faults"]
    }
    assert set(faults) == {("gone 1", "gone 2"), ("lacks",), ("sample__2",)}
    assert "base_commit: " in faults["gone 1", "gone 2"]
    assert "hermes-queue-no-such-package" in faults["lacks",]
    assert "has no branch" in faults["sample__2",]
    assert "1 of 5 rows are usable, 4 are not" in shown.err
    path.write_text(json.dumps(good | {"environment": None}) + "\n")
    assert main(PRODUCER, ["--dataset", str(path), "--check", "--check-runs", "0"]) == 0
    assert "note: 1 rows name no environment" in capsys.readouterr().err


@pytest.mark.fleet
def test_a_check_names_the_flaky_tests_of_a_row(
    row: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    toss(monkeypatch, "hth", repeated)
    made = added_tests(tmp_path, COIN_TEST, PASS_TO_PASS=[COIN])
    marked = made | {"environment": row["environment"] | {"flaky": [COIN]}}
    path = tmp_path / "rows.jsonl"
    for known, code in ((made, 1), (marked, 0)):
        path.write_text(json.dumps(known) + "\n")
        assert main(PRODUCER, ["--dataset", str(path), "--check"]) == code
        assert (
            f'passed and failed; put them there, so that they decide nothing: ["{COIN}"]'
            in capsys.readouterr().err
        ) == bool(code)


@pytest.mark.fleet
async def test_a_pipe_or_socket_in_place_of_a_file_takes_nothing_from_the_fix(
    row: dict[str, Any],
) -> None:
    bind = "import socket; socket.socket(socket.AF_UNIX).bind('sample/extra.py')"
    async with attempt(row) as agent:
        await agent.solve()
        await agent.run(f'rm PKG-INFO sample/extra.py; mkfifo PKG-INFO; python3 -c "{bind}"')
        verdict = await agent.verify()
    assert (verdict.score, verdict.report["dropped"]) == (1.0, ["PKG-INFO"]), verdict.report


# --- git sources ---------------------------------------------------------------------------


@pytest.mark.fleet
async def test_a_mirror_row_starts_at_the_tip_and_is_graded_on_its_parent(mirrors: Path) -> None:
    row = make_row(patch=sample.bug_patch(), repo_base_url=str(mirrors))
    async with attempt(row) as agent:
        tests = await agent.look("ls tests; git log --oneline | wc -l")
        await agent.solve()
        before = cached_files()
        verdict = await agent.verify()
    assert tests.stdout.decode().split() == ["test_label.py", "1"]
    assert verdict.score == 1.0
    assert cached_files() == before  # or each trajectory would make the cache larger


@pytest.mark.fleet
async def test_a_mirror_row_without_the_fix_scores_zero(mirrors: Path) -> None:
    async with attempt(make_row(patch=sample.bug_patch(), repo_base_url=str(mirrors))) as agent:
        assert (await agent.verify()).score == 0.0


@pytest.mark.fleet
async def test_a_base_commit_row_whose_patch_is_the_fix(
    row: dict[str, Any], tmp_path: Path
) -> None:
    bug = make_mirror(tmp_path, "anything")
    fixed = make_row(
        patch=sample.fix_patch(), repo_base_url=str(tmp_path), base_commit=bug, instance_id="a b"
    )
    async with attempt(fixed) as agent:
        tests = await agent.look("ls tests")
        await agent.solve()
        verdict = await agent.verify()
    assert tests.stdout == b"test_label.py\n"
    assert verdict.score == 1.0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"instance_id": "no-such-branch"}, "instance_id"),
        ({"instance_id": "not a branch"}, "instance_id"),
        ({"base_commit": "1" * 40}, "base_commit"),
        ({"patch": "diff --git a/no b/no\n--- a/no\n+++ b/no\n@@ -1 +1 @@\n-a\n+b\n"}, "patch"),
        (
            {"test_patch": "diff --git a/no b/no\n--- a/no\n+++ b/no\n@@ -1 +1 @@\n-a\n+b\n"},
            "test_p",
        ),
    ],
)
async def test_a_git_row_that_does_not_fit_is_the_rows_fault(
    mirrors: Path, changes: dict[str, Any], field: str
) -> None:
    row = make_row(**{"patch": sample.bug_patch(), "repo_base_url": str(mirrors), **changes})
    with pytest.raises(EnvBug, match=field):
        async with attempt(row):
            pass


@pytest.mark.fleet
@pytest.mark.parametrize(
    "package",
    [
        pytest.param(
            each, marks=() if each is READS_ITS_VERSION else pytest.mark.fleet, id=each.name
        )
        for each in PACKAGES
    ],
)
async def test_a_package_that_needs_its_own_metadata_is_graded_right(
    row: dict[str, Any], tmp_path: Path, package: Package
) -> None:
    genuine = package.row(tmp_path)
    text = ENV.prompt(Item.model_validate(genuine))[-1].content or ""
    [line] = [line.strip() for line in text.splitlines() if "-m pytest" in line]
    async with attempt(genuine) as agent:
        assert (await agent.look("git status --short")).output == ""
        shown = await agent.look(line)
        assert f"{len(package.passing)} passed" in shown.output
        await agent.solve()
        verdict = await agent.verify()
    dropped = [path for path in verdict.report["dropped"] if not path.startswith(".pytest_cache/")]
    assert (verdict.score, dropped) == (1.0, [])


@pytest.mark.fleet
async def test_a_package_that_needs_its_own_metadata_fails_by_its_bug_alone(
    row: dict[str, Any], tmp_path: Path
) -> None:
    async with attempt(READS_ITS_VERSION.row(tmp_path)) as agent:
        verdict = await agent.verify()
    assert verdict.score == 0.0
    assert verdict.report["tests_status"]["PASS_TO_PASS"]["failure"] == 0


@pytest.mark.fleet
async def test_metadata_that_the_agent_wrote_does_not_reach_grading(
    row: dict[str, Any], tmp_path: Path
) -> None:
    async with attempt(READS_ITS_VERSION.row(tmp_path)) as agent:
        await agent.solve()
        await agent.run(
            "printf 'Name: reads-its.version\\nVersion: 9\\n' > ~/.distribution/*/METADATA",
            "mkdir ~/.distribution/p; printf 'raise SystemExit' > ~/.distribution/sitecustomize.py",
        )
        verdict = await agent.verify()
    assert verdict.score == 1.0


async def test_a_repository_that_cannot_be_cloned_is_retried(mirrors: Path) -> None:
    row = make_row(patch=sample.bug_patch(), repo_base_url=str(mirrors / "nowhere"))
    with pytest.raises(EnvInfraError, match="repo_base_url"):
        async with attempt(row):
            pass


# --- recorded work -------------------------------------------------------------------------

ALTERED = {
    "no patch": "rm -rf /\n",
    "binary": "\0\x01\x02" * 1000,
    "path out of the tree": "--- /dev/null\n+++ b/../../outside\n@@ -0,0 +1 @@\n+x\n",
    "git's own": "--- /dev/null\n+++ b/.git/hooks/post-index-change\n@@ -0,0 +1 @@\n+x\n",
    "a huge literal": "diff --git a/sample/core.py b/sample/core.py\nindex 0..1\n"
    "GIT binary patch\nliteral 4294967295\nzcmZ\n\n",
}
PROTECTED = ("conftest.py", "tests/conftest.py", "sitecustomize.py")


@pytest.mark.fleet
async def test_a_recorded_patch_is_measured_like_the_agents_own_work(row: dict[str, Any]) -> None:
    async with attempt(row) as fresh:
        patch = (await (await pin(fresh.item, asset_reader(fresh.context))).gold()).decode()
        await ENV.put_back(fresh.item, fresh.context, {"patch": patch})
        verdict = await fresh.verify()
    assert verdict.score == 1.0
    assert recorded_patch(verdict.report).splitlines()[2:] == patch.splitlines()[2:]


@pytest.mark.fleet
async def test_an_altered_patch_is_no_score_and_no_more_than_an_agents(row: dict[str, Any]) -> None:
    on_tests = "".join(
        f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+collect_ignore_glob = ['*']\n"
        for path in PROTECTED
    )
    async with attempt(row) as fresh:
        for name, patch in ALTERED.items():
            with pytest.raises(EnvBug, match="does not apply"):
                await ENV.put_back(fresh.item, fresh.context, {"patch": patch})
            left = await fresh.look("git status --porcelain --untracked-files=all")
            assert (name, left.stdout) == (name, b"")
        name = f"No space left on device/{'n' * 300}"
        patch = f"--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+x\n"
        with pytest.raises(EnvBug, match="cannot be applied to files"):
            await ENV.put_back(fresh.item, fresh.context, {"patch": patch})
        await ENV.put_back(fresh.item, fresh.context, {"patch": on_tests})
        verdict = await fresh.verify()
    assert (verdict.score, verdict.report["reason"]) == (0.0, "tests_fail")
    assert set(verdict.report["dropped"]) == set(PROTECTED)
