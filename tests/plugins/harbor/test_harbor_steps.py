"""Tasks of several steps: what the agent left goes on to the next step, and nothing else does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from boxed_slots import BoxedSlots
from harbor_tasks import IMAGE, write_task

from envs.base import Verdict
from hermes_plugins.harbor.env import ENV
from hermes_plugins.harbor.item import HarborItem
from hermes_plugins.harbor.validation.measured import AttemptResult
from hermes_plugins.harbor.validation.poisoned import _poison, is_marked
from hermes_queue.errors import EnvInfraError, SandboxRejected
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.base import Capabilities, Slot
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.sandbox.image_slots import FileChange

STEPS = IMAGE + '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
ONE = "grep -qx first /app/work/one && echo 1 >/logs/verifier/reward.txt"
ONE += " || echo 0 >/logs/verifier/reward.txt"
TWO = """\
[ "$(ls /app/work)" = two ] && [ "$(cat /app/work/two)" = second ] && [ -e /tests/shared ] \\
  && [ ! -e /tests/answers ] && echo 1 >/logs/verifier/reward.txt \\
  || echo 0 >/logs/verifier/reward.txt
"""
FILES = {
    "tests/shared": "for both",
    "steps/one/instruction.md": "Write first.",
    "steps/one/tests/test.sh": ONE,
    "steps/one/tests/answers": "secret",
    "steps/two/instruction.md": "Now write second.",
    "steps/two/tests/test.sh": TWO,
}
Play = Callable[..., list[Verdict]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run commands as the agent of one step after the other, and grade each."""
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path / "cache"))

    def run(commands: Sequence[str], grading: Any = None, **files: str) -> list[Verdict]:
        write_task(tmp_path / "task", **{"config": STEPS, "test": None, **FILES, **files})
        (tmp_path / "slots").mkdir()
        backend = BoxedSlots(tmp_path / "slots", {"/app/given": "given"})

        async def whole() -> list[Verdict]:
            row = HarborItem(instance_id="i", task=str(tmp_path / "task"), grading=grading)
            items = ENV.steps(await ENV.load(row))
            slot = backend.slot(ENV.spec(items[0], "default"))
            context: Any = SlotContext(backend, slot, deadline=time.monotonic() + 120)  # type: ignore[arg-type]
            verdicts = list[Verdict]()
            for item, command in zip(items, commands, strict=False):
                if not verdicts:
                    await ENV.setup(item, context)
                elif spoiled := await ENV.begin_step(item, context):
                    return [*verdicts, spoiled]
                await context.run(command)
                verdicts.append(await ENV.verify(item, context, []))
            return verdicts

        return asyncio.run(whole())

    return run


def scores(verdicts: Sequence[Verdict]) -> list[float | None]:
    return [each.score for each in verdicts]


@pytest.mark.parametrize("grading", ["transplant", "restart"])
def test_the_files_of_a_step_are_there_in_the_next_and_graded_with_it(
    play: Play, grading: str
) -> None:
    first = "mkdir work; echo first >work/one"
    second = "[ -e given ] && [ ! -e /tests ] && rm work/one && echo second >work/two"
    assert scores(play([first, second], grading)) == [1, 1]


def test_a_step_is_not_rewarded_for_what_only_an_earlier_one_did(play: Play) -> None:
    assert scores(play(["mkdir work; echo first >work/one", "true"])) == [1, 0]


def test_a_step_brings_files_and_runs_its_setup(play: Play) -> None:
    files = {
        "steps/two/workdir/note": "hello",
        "steps/two/workdir/setup.sh": "rm work/one && tr h s <note >made",
    }
    second = '[ "$(cat made)" = sello ] && echo second >work/two'
    assert scores(play(["mkdir work; echo first >work/one", second], **files)) == [1, 1]


def test_a_setup_that_the_agent_has_broken_counts_as_0(play: Play) -> None:
    files = {"steps/two/workdir/setup.sh": "[ -e given ]"}
    verdicts = play(["mkdir work; echo first >work/one; rm given", "true"], **files)
    assert (scores(verdicts), verdicts[1].report["reason"]) == ([1, 0], "setup_failed")


def test_a_box_without_a_shell_is_the_agents_doing(play: Play) -> None:
    verdicts = play(["rm /bin /lib /lib64", "true"])
    assert (scores(verdicts), verdicts[1].report["reason"]) == ([0, 0], "setup_failed")


@pytest.mark.parametrize("is_the_agents", [True, False])
def test_a_step_keeps_its_score_where_its_agents_files_keep_the_next_from_beginning(
    play: Play, monkeypatch: pytest.MonkeyPatch, is_the_agents: bool
) -> None:
    listed = BoxedSlots.changes
    asked: list[str] = []

    async def too_slow(self: BoxedSlots, slot: Slot) -> list[FileChange]:
        asked.append(slot.slot_id)
        if len(asked) == 1 or not is_the_agents:
            raise FilesRefused("the slot's files were not listed in time")
        return await listed(self, slot)

    monkeypatch.setattr(BoxedSlots, "changes", too_slow)
    separate = '[verifier]\nenvironment_mode = "separate"\n[[artifacts]]\nsource = "/app/work"\n'
    files = {"config": STEPS.replace("[[steps]]", f"{separate}[[steps]]", 1)}
    if is_the_agents:
        verdicts = play(["mkdir work; echo first >work/one", "true"], **files)
        assert (scores(verdicts), verdicts[1].report["reason"]) == ([1, 0], "setup_failed")
    else:
        with pytest.raises(FilesRefused):
            play(["mkdir work; echo first >work/one", "true"], **files)
    assert len(set(asked)) == 2


@pytest.mark.parametrize("step", ["one", "two"])
def test_a_setup_that_fails_for_everybody_is_a_failure_of_ours(play: Play, step: str) -> None:
    with pytest.raises(EnvInfraError, match=r"setup\.sh ended with 3"):
        play(["true", "true"], **{f"steps/{step}/workdir/setup.sh": "exit 3"})


def test_a_setup_that_needs_what_the_agent_did_not_make_counts_as_0(play: Play) -> None:
    files = {
        "steps/one/solution/solve.sh": "mkdir work; echo first >work/one",
        "steps/two/workdir/setup.sh": "grep -qx first work/one",
    }
    verdicts = play(["true", "true"], **files)
    assert (scores(verdicts), verdicts[1].report["reason"]) == ([0, 0], "setup_failed")


def test_a_setup_that_fails_after_the_earlier_solutions_too_is_a_failure_of_ours(
    play: Play,
) -> None:
    files = {
        "steps/one/solution/solve.sh": "mkdir work; echo first >work/one",
        "steps/two/workdir/setup.sh": "grep -qx second work/one",
    }
    with pytest.raises(EnvInfraError, match="nor where the solutions"):
        play(["true", "true"], **files)


def test_a_backend_that_cannot_keep_a_box_is_refused_before_the_agent_begins(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    unable = Capabilities(isolation=True, images=True, commits=False)
    monkeypatch.setattr(BoxedSlots, "capabilities", unable)
    with pytest.raises(SandboxRejected, match="a task of several steps needs"):
        play(["true", "true"])


def test_programs_of_an_earlier_step_do_not_grade_a_later_one(play: Play) -> None:
    cheat = "mkdir -p /usr/local/bin /opt; echo 'echo 1' >/opt/x; ln -s /opt/x /etc/ld.so.preload"
    verdicts = play([cheat, "true"], "restart")
    assert (scores(verdicts), verdicts[1].report["reason"]) == ([0, 0], "suspect")


@pytest.mark.parametrize(("test", "marked"), [("python3 /app/answer.py", True), ("true", False)])
def test_a_poisoned_solution_shows_whether_tests_run_the_agents_code(
    play: Play, tmp_path: Path, test: str, marked: bool
) -> None:
    task = tmp_path / "solved"
    files = {"solution/solve.sh": "echo 'print(6 * 7)' >/app/answer.py"}
    write_task(task, **files)
    _poison(task, tmp_path / "poisoned")
    made = tmp_path / "poisoned" / "solution"
    script = "".join(
        f"cat >/tmp/{path.name} <<'END-OF-FILE'\n{path.read_text()}\nEND-OF-FILE\n"
        for path in sorted(made.iterdir())
    )
    [verdict] = play(
        [f"{script}bash /tmp/solve.sh"],
        config=IMAGE,
        test=f"{test}; [ -e /logs/verifier/reward.json ] || echo 1 >/logs/verifier/reward.txt",
    )
    result = AttemptResult(verdict.score, 1.0, rewards=verdict.rewards)
    assert (verdict.score, is_marked(result)) == (1, marked)
