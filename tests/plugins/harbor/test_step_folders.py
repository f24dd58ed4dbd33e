"""Steps of a Harbor task: what holds in each of them, and what their rewards come to."""

from __future__ import annotations

from pathlib import Path

import pytest
from harbor_tasks import IMAGE, TEST, write_task

from envs.base import Verdict
from hermes_plugins.harbor.env import instruction, system
from hermes_plugins.harbor.item import HarborItem
from hermes_plugins.harbor.sources.inspect import inspect
from hermes_plugins.harbor.steps.folders import StepFolder, views
from hermes_plugins.harbor.steps.rewards import limit_s, passes, total
from hermes_plugins.harbor.task import TaskFolder
from hermes_queue.errors import EnvBug
from hermes_queue.sandbox.image_slots import FileChange, changes_since, maybe_replaced

CONFIG = IMAGE + (
    '[agent]\ntimeout_sec = 100\nuser = "root"\n'
    "[verifier]\ntimeout_sec = 50\n[verifier.env]\nA = '1'\nB = '2'\n"
    '[[artifacts]]\nsource = "/app/all"\n'
    '[[steps]]\nname = "one"\nmin_reward = 0.5\n[steps.agent]\ntimeout_sec = 300\n'
    "[steps.verifier]\ntimeout_sec = 7\nenvironment_mode = 'separate'\n"
    "[steps.verifier.env]\nB = '3'\n"
    '[[steps]]\nname = "two"\nmin_reward = { reward = 1, style = 0.2 }\n'
    '[[steps.artifacts]]\nsource = "/app/two"\n'
)
FILES = {
    "steps/one/instruction.md": "First.",
    "steps/one/tests/test.sh": TEST,
    "steps/two/instruction.md": "Second.",
    "steps/two/solution/solve.sh": "true",
    "solution/solve.sh": "true",
}


def steps_in(folder: Path, config: str = CONFIG, **files: str) -> tuple[TaskFolder, ...]:
    write_task(folder, config=config, **{**FILES, **files})
    return views(TaskFolder.read(folder))


def two_steps(folder: Path, strategy: str) -> tuple[TaskFolder, ...]:
    return steps_in(folder, f'multi_step_reward_strategy = "{strategy}"\n{CONFIG}')


def test_a_step_says_what_holds_in_it_and_else_the_task_does(tmp_path: Path) -> None:
    one, two = steps_in(tmp_path)
    assert (one.config.agent.timeout_s, one.config.agent.user) == (300, "root")
    assert (one.verifier.timeout_s, two.verifier.timeout_s) == (7, 50)
    assert (one.verifier.env, two.verifier.env["B"]) == ({"A": "1", "B": "3"}, "2")
    assert (one.separate, two.separate) == (True, False)
    assert [each.source for each in two.artifacts] == ["/logs/artifacts", "/app/all", "/app/two"]
    assert (one.instruction, two.instruction) == ("First.", "Second.")


def test_a_step_has_the_tests_of_the_task_under_its_own(tmp_path: Path) -> None:
    one, two = steps_in(tmp_path)
    assert one.test_folders == (tmp_path / "tests", tmp_path / "steps/one/tests")
    assert two.test_folders == (tmp_path / "tests",)
    assert (one.solution, two.solution) == (
        tmp_path / "solution",
        tmp_path / "steps/two/solution",
    )
    assert (one.missing(), two.missing()) == ([], [])


def test_the_nearest_image_of_a_verifier_counts(tmp_path: Path) -> None:
    config = CONFIG + '[verifier.environment]\ndocker_image = "task"\n'
    one, two = steps_in(tmp_path, config, **{"steps/two/tests/Dockerfile": "FROM x"})
    assert (one.verifier.environment and one.verifier.environment.docker_image) == "task"
    assert two.verifier_context == tmp_path / "steps/two/tests"
    assert two.verifier.environment is not None
    assert two.verifier.environment.docker_image is None


def test_a_step_without_instruction_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvBug, match=r"steps/two/instruction\.md: is empty"):
        steps_in(tmp_path, **{"steps/two/instruction.md": " "})


def test_the_limit_of_all_steps_stretches_each(tmp_path: Path) -> None:
    steps = steps_in(tmp_path)
    assert [limit_s(steps, number, 800.0) for number in (0, 1)] == [600, 200]
    assert [limit_s(steps, number, None) for number in (0, 1)] == [300, 100]


@pytest.mark.parametrize(
    ("step", "score", "rewards", "passed"),
    [
        (0, 0.5, {}, True),
        (0, 0.4, {}, False),
        (0, 1.0, {"speed": 1.0}, False),
        (1, 1.0, {"reward": 1.0, "style": 0.2}, True),
        (1, 1.0, {}, False),
    ],
)
def test_min_reward_asks_for_its_keys(
    tmp_path: Path, step: int, score: float, rewards: dict[str, float], passed: bool
) -> None:
    assert passes(steps_in(tmp_path)[step], Verdict(score, rewards)) is passed


@pytest.mark.parametrize(
    ("strategy", "given", "score"),
    [
        ("mean", [1.0, 0.0], 0.5),
        ("mean", [0.25], 0.25),  # `min_reward` ended it, and the format counts what was graded
        ("mean", [1.0], 0.5),  # the agent ended it
        ("final", [0.5, 1.0], 1.0),
        ("final", [0.25], 0.25),
        ("final", [1.0], 0.0),
    ],
)
def test_rewards_of_steps_come_to_one(
    tmp_path: Path, strategy: str, given: list[float], score: float
) -> None:
    verdict = total(two_steps(tmp_path, strategy), [Verdict(each) for each in given])
    assert (verdict.score, verdict.rewards) == (score, {})
    assert [each["score"] for each in verdict.report["steps"]] == given


def test_a_missing_key_counts_as_0_in_the_mean(tmp_path: Path) -> None:
    given = [Verdict(1.0, {"reward": 1.0, "speed": 4.0}), Verdict(1.0)]
    assert total(two_steps(tmp_path, "mean"), given).rewards == {"reward": 1, "speed": 2}


def test_only_the_first_step_tells_the_agent_about_its_box(tmp_path: Path) -> None:
    one, two = steps_in(tmp_path)
    item = HarborItem(instance_id="i", task=str(tmp_path))
    first, second = [item.loaded(each, (one, two)) for each in (one, two)]
    assert "Further instructions may follow" in system(first)
    assert instruction(first) == "First."
    assert instruction(second) == "Second.\n\nYou have 2 minutes for this."
    assert isinstance(two, StepFolder)
    assert two.is_last


def test_a_producer_reads_all_steps(tmp_path: Path) -> None:
    steps_in(tmp_path)
    row = {"instance_id": "i", "task": str(tmp_path)}
    found = inspect(row, embed=False)
    assert (found.steps, found.agent_timeout_s, found.verifier_timeout_s) == (2, 400, 50)
    assert (found.has_solution, found.unsupported) == (True, None)
    assert found.modes == ("transplant", "restart")


def changed(**kinds: str) -> list[FileChange]:
    return [FileChange(f"/{path.replace('_', '/')}", kind) for path, kind in kinds.items()]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "later", "both"),
    [
        (changed(a="added"), changed(b="changed"), changed(a="added", b="changed")),
        (changed(a="added"), changed(a="changed"), changed(a="added")),
        (changed(a="added", a_b="added"), changed(a="deleted"), []),
        (changed(a="changed", a_b="added"), changed(a="deleted"), changed(a="deleted")),
        (
            changed(a="deleted"),
            changed(a="added", a_b="added"),
            [*changed(a="deleted"), *changed(a="changed", a_b="changed")],
        ),
    ],
)
def test_changes_of_two_steps_are_changes_of_the_image(
    before: list[FileChange], later: list[FileChange], both: list[FileChange]
) -> None:
    assert changes_since(before, later) == both


def test_what_comes_below_a_file_in_place_of_the_images_folder_is_never_added() -> None:
    folder_is_file, other = changed(usr_lib="changed"), changed(opt="changed", opt_a="added")
    hidden = maybe_replaced([*folder_is_file, *other])
    assert hidden == {"/usr/lib"}
    folder_again = changed(opt_b="added", usr_lib="changed", usr_lib_cache="added")
    both = changes_since([*folder_is_file, *other], folder_again, hidden)
    assert both == changed(
        opt="changed",
        opt_a="added",
        opt_b="added",
        usr_lib="changed",
        usr_lib_cache="changed",
    )
    third = changes_since(both, changed(usr_lib_a="added"), hidden | maybe_replaced(both))
    assert FileChange("/usr/lib/a", "changed") in third
