"""The bundled tasks and those in the shape of endless-terminals, on a real backend.

`make test-harbor`; HARBOR_SANDBOX names the backend (default: local), see `harbor_backends`:
"docker" and "podman" are the backend `docker` on such an engine, "nomad" and "localmodal" those
backends with a server of ours on this host. For "local", the base image must be on this host or in
reach: without a registry, `hermes-queue images base python:3.11-slim-bookworm` makes it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from validated_tasks import SANDBOX, TIMEOUT_S, validated

from hermes_plugins.harbor.cheats import cases
from hermes_queue.models import ToolCall

HERE = Path(__file__).parent
DATA = HERE.parents[3] / "hermes_plugins" / "harbor" / "data"
TASKS = sorted(folder.name for folder in DATA.iterdir())
ENDLESS = sorted(folder.name for folder in (HERE / "endless").iterdir())
STEPS = "two-steps"

pytestmark = [pytest.mark.timeout(TIMEOUT_S + 60), pytest.mark.usefixtures("backend")]
keeps_boxes = pytest.mark.skipif(SANDBOX == "nomad", reason="Nomad keeps no box between steps")


@pytest.mark.parametrize(
    "task", [pytest.param(name, marks=keeps_boxes if name == STEPS else ()) for name in TASKS]
)
def test_a_bundled_task_rewards_its_solution_and_nothing_else(tmp_path: Path, task: str) -> None:
    line = validated(tmp_path, DATA, task)
    assert line["verdict"] == "valid", line
    strict = {"separate-grader": "separate", "collected-database": "separate"}
    assert line["mode"] == strict.get(task, "transplant")
    assert len(line["modes"][line["mode"]]["tamper"]) == len(cases())
    assert line["executes_agent_code"] is False


@pytest.mark.skipif(SANDBOX != "nomad", reason="only Nomad cannot run it")
def test_a_task_of_several_steps_is_refused_where_no_box_is_kept(tmp_path: Path) -> None:
    line = validated(tmp_path, DATA, STEPS)
    assert line["verdict"] == "failed"
    assert "use docker, local or modal" in json.dumps(line)


def test_tests_that_run_the_agents_code_are_found(tmp_path: Path) -> None:
    task = tmp_path / "tasks" / "runs-code"
    shutil.copytree(DATA / "csv-totals", task)
    solve, test = task / "solution" / "solve.sh", task / "tests" / "test.sh"
    solve.write_text("echo 'print(6 * 7)' >/app/answer.py")
    checked = '[ "$(python3 /app/answer.py)" = 42 ] && reward=1 || reward=0'
    test.write_text(f"{checked}\necho $reward >/logs/verifier/reward.txt\n")
    line = validated(tmp_path, tmp_path / "tasks", "runs-code")
    assert (line["verdict"], line["executes_agent_code"]) == ("valid", True)


@keeps_boxes
@pytest.mark.parametrize("way", cases())
def test_a_cheat_in_the_second_step_leaves_the_reward_of_the_first(
    tmp_path: Path, way: str
) -> None:
    solution = DATA / STEPS / "steps" / "inventory" / "solution" / "solve.sh"
    [cheat, _] = cases()[way]
    assert isinstance(cheat, ToolCall)
    commands = [solution.read_text(), json.loads(cheat.function.arguments)["command"]]
    record = played(tmp_path, DATA, STEPS, commands, expected=1)
    assert [step["score"] for step in record["report"]["steps"]] == [1, 0]
    assert record["score"] == 0.5


@pytest.mark.parametrize("task", ENDLESS)
def test_a_task_of_endless_terminals_begins_unsolved_and_cannot_be_forged(
    tmp_path: Path, task: str
) -> None:
    assert validated(tmp_path, HERE / "endless", task)["verdict"] == "no_oracle"


@pytest.mark.parametrize("task", ENDLESS)
def test_a_task_of_endless_terminals_rewards_the_work(tmp_path: Path, task: str) -> None:
    solution = (HERE / "endless" / task / "solutions" / "solve.sh").read_text()
    played(tmp_path, HERE / "endless", task, [solution])


def played(
    tmp_path: Path, dataset: Path, task: str, scripts: list[str], expected: int = 0
) -> dict[str, Any]:
    """The record of an agent that runs one script per step, and submits after it."""
    record, given = tmp_path / "record.json", tmp_path / "entered.txt"
    entered = ""
    for number, text in enumerate(scripts):
        place = f"/tmp/solve-{number}.sh"
        written = f"cat >{place} <<'SOLUTION'\n{text}\nSOLUTION\n"
        entered += f"{_line(written)}\n{_line(f'bash {place}')}\n:submit\n"
    given.write_text(entered)
    command = [sys.executable, "-m", "hermes_queue.cli", "play", "--env", "harbor"]
    command += ["--dataset", str(dataset), "--instance-id", task]
    command += ["--sandbox", SANDBOX, "--record", str(record)]
    with given.open() as lines:
        done = subprocess.run(
            command, stdin=lines, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    assert done.returncode == expected, done.stdout[-3000:] + done.stderr[-1000:]
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def _line(command: str) -> str:
    """A command of several lines as one line of `hermes-queue play`."""
    quoted = command.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"eval $'{quoted}'"
