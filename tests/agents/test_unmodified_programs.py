"""The bundled programs, unmodified and locked, from the queue to the verdict."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pages
import pytest
from records import published_records
from scripted_model import Fail, Say, replies_before, steps
from worker_process import wait_until

from hermes_queue.agent.programs.catalogue import find_program, make_program, preset_names
from hermes_queue.agent.programs.install import TOP_LEVEL
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.local.backend import LocalBackend

END = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
ANSWER = r"The answer is \boxed{24}."
NPM = {"HERMES_QUEUE_LOCAL_BUILD_HOSTS": "registry.npmjs.org"}
PYTHON_PROGRAMS = [name for name in preset_names() if find_program(name).lock]


def bash(command, text=None):
    return Say(text, "bash", {"command": command})


def terminal(command, text=None, **more):
    return Say(text, "terminal", {"command": command}, **more)


def execute(command):
    """A command of OpenHands, which wants to know how dangerous it is."""
    return Say(None, "terminal", {"command": command, "security_risk": "LOW"})


def finish(text):
    return Say(None, "finish", {"message": text})


def block(command, text):
    return Say(f"{text}\n\n```mswea_bash_command\n{command}\n```")


def script(program, *commands, last="Done."):
    """What the model of a program says to run `commands` and end with the text `last`."""
    if program == "mini-swe-agent":
        return steps(*(bash(each, "Now.") for each in commands), bash(END, last))
    if program == "mini-swe-agent-text":
        return steps(*(block(each, "Now.") for each in commands), block(END, last))
    if program == "aider":  # edits files by text alone, and runs no commands
        return steps(Say(last))
    if program == "openhands":
        return steps(*map(execute, commands), finish(last))
    name, argument = {
        "hermes-agent": ("terminal", "command"),
        "codex": ("exec_command", "cmd"),
        "claude-code": ("Bash", "command"),
    }[program]
    return steps(*(Say(None, name, {argument: each}) for each in commands), Say(last))


def assert_complete(record, calls):
    """What every record of a program holds."""
    assert record.failure is None, record.failure
    assert record.stop_reason == "exited"
    assert [turn.call.status for turn in record.turns] == ["delivered"] * calls
    assert [branch.label for branch in record.branches] == ["main"]
    assert record.program.exit_code == 0
    assert record.program.version == find_program(record.program.name).version


def assert_no_key(record):
    text = record.to_json()
    assert not re.search("hq-[0-9a-f]{16}", text)


@pytest.mark.parametrize(
    "program",
    ["mini-swe-agent", "mini-swe-agent-text", "hermes-agent", "openhands", "codex", "claude-code"],
)
def test_a_program_repairs_a_bundled_row(run, model, start_worker, bug, repair, program):
    start_worker(**NPM)
    model.play = script(program, "git status --short", repair)
    run.enqueue(program, row=bug)
    record = run.record()
    assert_complete(record, calls=3)
    assert record.score == 1.0
    assert record.report["reason"] == "resolved"
    assert_no_key(record)


def test_the_program_that_the_documentation_describes_repairs_a_bundled_row(
    run, model, start_worker, bug, repair, tmp_path
):
    page = pages.ROOT / "docs/programs.md"
    (file,) = (block for block in pages.blocks(page, "toml") if block.says("file"))
    (make,) = (
        command
        for block in pages.blocks(page, "sh")
        for command in block.text.splitlines()
        if "uv pip compile" in command
    )
    (tmp_path / file.says("file")).write_text(file.text)
    uv = f"{shlex.quote(sys.executable)} -m uv"
    subprocess.run(make.replace("uv", uv, 1), shell=True, cwd=tmp_path, check=True, timeout=300)
    start_worker()
    model.play = steps(terminal("git status --short"), terminal(repair), Say("Done."))
    run.enqueue(str(tmp_path / file.says("file")), row=bug)
    record = run.record()
    assert record.failure is None, record.failure
    assert (record.score, len(record.turns), record.program.name) == (1.0, 3, "llm")


@pytest.mark.parametrize("program", PYTHON_PROGRAMS)
def test_the_last_message_is_the_answer_where_the_workspace_is_not_looked_at(
    run, model, start_worker, program
):
    start_worker()
    commands = () if program == "aider" else ("python3 -c 'print(2 * 12)'",)
    model.play = script(program, *commands, last=ANSWER)
    run.enqueue(program)
    record = run.record()
    assert_complete(record, calls=len(commands) + 1)
    assert (record.score, record.report["reason"]) == (1.0, "right")


def test_mini_repairs_a_bundled_row_in_a_modal_sandbox(
    run, model, start_worker, bug, repair, localmodal
):
    start_worker(HERMES_QUEUE_SANDBOX_BACKEND="modal", **localmodal.environment)
    model.play = script("mini-swe-agent", "git status --short", repair)
    run.enqueue("mini-swe-agent", row=bug)
    record = run.record()
    assert_complete(record, calls=3)
    assert record.score == 1.0


@pytest.mark.parametrize("program", PYTHON_PROGRAMS)
async def test_the_import_names_of_a_preset_are_those_of_its_installation(program):
    asset = make_program(find_program(program)).asset
    backend = LocalBackend(slots=1)
    await backend.start()
    try:
        await backend.prepare(SlotSpec(assets=(asset,)))
        installed = (await backend.read_asset(asset, TOP_LEVEL)).decode().split()
    finally:
        await backend.stop()
    assert sorted(find_program(program).imports) == installed


# --- limits -------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["mini-swe-agent", "hermes-agent", "openhands"])
def test_a_program_that_wants_another_turn_than_allowed_is_ended_and_scored(
    run, model, start_worker, program
):
    start_worker()
    model.play = script(program, *["true"] * 9, last=ANSWER)
    run.enqueue(program, max_turns=3)
    record = run.record()
    assert (record.stop_reason, record.score, len(record.turns)) == ("max_turns", 0.0, 3)
    assert record.program.refused, "the program was told"


def test_a_program_that_spends_all_tokens_is_ended_and_scored(run, model, start_worker):
    start_worker()
    model.play = script("mini-swe-agent", *["true"] * 9, last=ANSWER)
    run.enqueue("mini-swe-agent", max_tokens=25)
    record = run.record()
    assert (record.stop_reason, record.score) == ("max_tokens", 0.0)


def test_a_program_that_works_for_too_long_is_ended_and_scored(run, model, start_worker):
    start_worker()
    model.play = script("hermes-agent", "sleep 1000", last=ANSWER)
    run.enqueue("hermes-agent", agent_timeout_s=90)
    record = run.record()
    assert (record.stop_reason, record.score, len(record.turns)) == ("time_limit", 0.0, 1)


# --- faults -------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["mini-swe-agent", "hermes-agent", "openhands"])
def test_a_model_that_fails_for_good_is_not_the_programs_fault(run, model, start_worker, program):
    start_worker(
        HERMES_QUEUE_MODEL_MAX_RETRIES="0",
        HERMES_QUEUE_RETRY_ATTEMPTS_MODEL="1",
    )

    def play(body):
        return Fail(500) if replies_before(body) else script(program, "true")(body)

    model.play = play
    run.enqueue(program)
    record = run.record()
    assert (record.status, record.score, record.failure.cause) == ("failed", None, "model")


def test_the_job_of_a_worker_killed_under_hermes_is_finished_elsewhere_and_published_once(
    run, model, start_worker
):
    doomed = start_worker(forked=False)
    model.play = script("hermes-agent", "true", "true", last=ANSWER)
    model.wait_s = 2.0
    trajectory = run.enqueue("hermes-agent")
    wait_until(
        "the program has called", lambda: any(map(replies_before, model.bodies)), timeout_s=600.0
    )
    doomed.kill9()
    model.wait_s = 0.0
    start_worker()
    record = run.record()
    assert_complete(record, calls=3)
    assert (record.trajectory_id, record.epoch, record.score) == (trajectory, 2, 1.0)
    assert len(published_records(run.ledger)) == 1


# --- branches -----------------------------------------------------------------------------


def first_user(body):
    return next(str(m["content"]) for m in body["messages"] if m["role"] == "user")


def test_a_sub_agent_of_hermes_is_a_branch_of_its_own(run, model, start_worker):
    start_worker()
    goal = "Count the files of the workspace with ls and report their number."

    def play(body):
        if goal in first_user(body):
            return steps(terminal("ls | wc -l"), Say("There are 0 files."))(body)
        hand_on = Say(None, "delegate_task", {"goal": goal})
        return steps(hand_on, Say(ANSWER))(body)

    model.play = play
    run.enqueue("hermes-agent")
    record = run.record()
    assert record.failure is None, record.failure
    assert sorted(branch.label for branch in record.branches) == ["main", "sub_agent"]
    assert record.score == 1.0
    assert record.messages[-1].content == ANSWER


def test_a_sub_agent_of_openhands_is_a_branch_of_its_own(run, model, start_worker):
    start_worker()
    goal = "Count the files of the workspace with ls and report their number."

    def play(body):
        if goal in first_user(body):
            return steps(execute("ls | wc -l"), finish("There are 0 files."))(body)
        task = {"prompt": goal, "subagent_type": "bash-runner", "description": "count files"}
        return steps(Say(None, "task", {**task, "security_risk": "LOW"}), finish(ANSWER))(body)

    model.play = play
    run.enqueue("openhands")
    record = run.record()
    assert record.failure is None, record.failure
    assert sorted(branch.label for branch in record.branches) == ["main", "sub_agent"]
    assert record.score == 1.0


def test_what_hermes_says_after_it_has_compacted_its_history_is_a_branch(
    run, model, start_worker, tmp_path: Path
):
    preset = find_program("hermes-agent")
    ((path, config),) = [pair for pair in preset.files.items() if pair[1]]
    small = config.replace('"context_length": 131072', '"context_length": 65536').replace(
        '"approvals"', '"compression": {"protect_first_n": 1, "protect_last_n": 2}, "approvals"'
    )
    assert small != config
    file = tmp_path / "small.toml"
    file.write_text(
        f"[programs.small]\nlike = 'hermes-agent'\n[programs.small.files]\n'{path}' = '''{small}'''"
    )
    start_worker()
    told = "The summary: nothing was found so far."

    def play(body):
        if not body.get("tools"):
            return Say(told)
        if any(told in str(message["content"]) for message in body["messages"]):
            return Say(ANSWER)
        long = f"seq {replies_before(body)}000 {replies_before(body)}900"
        return terminal(long, "Looking.", prompt_tokens=9_000 * replies_before(body) + 9_000)

    model.play = play
    run.enqueue(str(file))
    record = run.record()
    assert record.failure is None, record.failure
    assert "compaction" in {branch.label for branch in record.branches}
    assert (record.score, record.stop_reason) == (1.0, "exited")
