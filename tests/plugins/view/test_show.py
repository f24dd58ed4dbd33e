"""`hermes-queue show`: from Redis, the ledger, an archive or a file; harmless for a terminal."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from ledger_steps import begin, enqueue
from ledger_steps import publish as publish_record
from records import make_job, make_record
from strange_records import nearly, record
from stream_groups import group_id, publish

from hermes_plugins.view import show as command
from hermes_plugins.view.terminal import tables, trajectory
from hermes_queue.bodies.steps import JournalStep, encode_entry
from hermes_queue.ledger import Runs
from hermes_queue.models import (
    AttemptRecord,
    Failure,
    FunctionCall,
    Message,
    ScoredTrajectory,
    ToolCall,
    Turn,
)
from hermes_queue.results.archive import ArchiveSink
from hermes_queue.results.stored import stored_group

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\r\x00\ud800"
OURS = re.compile("\x1b\\[[0-9;]*m")
CALL = ToolCall(id="c", function=FunctionCall(name="terminal", arguments='{"command": "pytest"}'))
MESSAGES = (
    Message(role="user", content="repair it"),
    Message(role="assistant", reasoning="hm", tool_calls=(CALL,)),
    Message(role="tool", tool_call_id="c", content="[exit code 1]\n\x1b[31mFAILED\x1b[0m"),
)


def a_record(sample: int = 0, **more) -> ScoredTrajectory:
    made = make_record(make_job("run", "a", sample, 2), 0.0)
    given = {"messages": MESSAGES, "report": {"reason": "tests_fail", "patch": "+x\n"}, **more}
    return made.model_copy(update=given)


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "records.jsonl"
    path.write_text("".join(a_record(n).to_json() + "\n" for n in range(2)))
    return path


def show(*arguments: object, url: str = "", archive: Path | None = None, expect: int = 0) -> str:
    """Output and errors of the command."""
    env = {
        "HERMES_QUEUE_REDIS_URL": url or "unix:///nowhere",
        "HERMES_QUEUE_ARCHIVE_DIRECTORY": str(archive or "/nowhere"),
    }
    from hermes_queue.cli import cli

    answer = CliRunner().invoke(cli, ["show", *map(str, arguments)], env=env)
    assert answer.exit_code == expect, answer.output
    return answer.output


# --- a file -------------------------------------------------------------------------------


def test_a_trajectory_of_a_file_is_shown_with_head_transcript_verdict_and_patch(file):
    shown = show(f"{group_id('a')}.1", file)
    for part in ("score 0  tests_fail", "#1 of 2", "1 assistant", "→ terminal pytest", "exit 1"):
        assert part in shown
    assert shown.index("FAILED") < shown.index("reason: tests_fail") < shown.index("patch, 3 bytes")


def test_a_group_is_a_table_of_its_samples_and_what_they_did(file):
    shown = show(group_id("a"), file)
    assert "ALIKE" in shown
    assert shown.count("tests_fail") == 2
    assert "terminal pytest" in shown


def test_single_messages_are_shown_alone(file):
    shown = show(f"{group_id('a')}.0", file, "--messages", "1:2")
    assert "→ terminal pytest" in shown
    assert "repair it" not in shown
    assert "tests_fail" not in shown


def test_the_conversation_of_a_sub_agent_is_shown_alone(file):
    raw = json.loads(a_record(0).to_json())
    said = {"role": "assistant", "content": "from below"}
    raw |= {"schema_version": 2, "nodes": [{"message": said, "turn": 0}]}
    raw["branches"] = [{"label": "sub_agent", "root": 0, "leaf": 0}]
    file.write_text(json.dumps(raw))
    name = f"{group_id('a')}.0"
    assert "0 sub_agent" in show(name, file)
    shown = show(name, file, "--branch", 0)
    assert "from below" in shown
    assert "repair it" not in shown
    assert "no conversation 1" in show(name, file, "--branch", 1, expect=2)


def test_json_is_the_record_as_the_sink_writes_it_and_hides_nothing(file):
    hidden = Message(role="user", content="\u202eé\x9b😀\U000e0041")
    line = a_record(0, messages=(hidden,)).to_json()
    file.write_text(line)
    shown = show(f"{group_id('a')}.0", file, "--json")
    assert json.loads(shown) == json.loads(line)
    assert "\\u202e" in shown
    assert "\u202e" not in shown
    assert "\x9b" not in shown
    assert "é😀" not in shown
    assert shown.isascii() is False


def test_json_of_a_record_that_is_not_valid_is_what_there_is_of_it(file):
    file.write_text('{"trajectory_id": "r.g.0", "messages": 7, "odd": [1, "\\ud800"]}\n')
    assert json.loads(show("r.g.0", file, "--json"))["odd"][0] == 1


def test_the_patch_alone_is_as_the_report_has_it(file):
    assert show(f"{group_id('a')}.0", file, "--patch") == "+x\n"


def test_a_patch_with_hidden_characters_is_shown_with_signs_and_says_so(file):
    file.write_text(a_record(0, report={"patch": "+\x1b[2Jx\n"}).to_json())
    shown = show(f"{group_id('a')}.0", file, "--patch")
    assert "+␛[2Jx" in shown
    assert "--json has the patch as it is" in shown


def test_a_member_of_a_group_whose_id_is_no_text_is_named_in_short(file):
    file.write_text(json.dumps({"group_id": "g", "trajectory_id": ["x\x1b" * 9000]}))
    shown = show("g", file, "--patch")
    assert "the report has no patch" in shown
    assert len(shown) < 400


def test_an_unknown_id_says_where_it_was_looked_for(file, tmp_path):
    (tmp_path / "archive").mkdir()
    shown = show("no.such.0", file, tmp_path / "archive", expect=2)
    assert "no trajectory and no group 'no.such.0'" in shown
    assert f"{file} (2 lines)" in shown
    assert "(0 runs)" in shown


def test_an_id_within_another_record_is_not_taken_for_it(file):
    other = make_job("run", "b").trajectory_id
    file.write_text(a_record(0, requeued_from=other).to_json())
    assert "no trajectory" in show(other, file, expect=2)


def test_a_damaged_line_is_named_and_the_others_are_shown(file):
    name = f"{group_id('a')}.0"
    file.write_text(f'{{"trajectory_id": "{name}", \n' + a_record(0).to_json())
    shown = show(name, file)
    assert "line 1: not a record" in shown
    assert "→ terminal pytest" in shown


@pytest.mark.parametrize(
    "wrong", [["--messages", "x"], ["--messages", ":"], ["--json", "--patch"], ["--tokenizer", "."]]
)
def test_wrong_flags_are_refused(file, wrong):
    assert "Error" in show("a", file, *wrong, expect=2)


# --- Redis and the archive ----------------------------------------------------------------


def test_a_trajectory_is_found_in_redis_before_and_after_its_group_is_published(ledger):
    first, second = (make_job("run", "a", n, 2) for n in range(2))
    enqueue(ledger, first, second)
    begin(ledger, first)
    publish_record(ledger, a_record(0))
    assert "→ terminal pytest" in show(first.trajectory_id, url=ledger.url)
    assert "1 of 2 samples have ended" in show(first.group_id, url=ledger.url)
    begin(ledger, second)
    publish_record(ledger, a_record(1))
    assert show(first.group_id, url=ledger.url).count("tests_fail") == 2


def test_a_group_is_found_in_the_archive_when_redis_has_forgotten_it(ledger, tmp_path):
    publish(ledger, "a")
    [(_, fields)] = ledger.client.xrange("hq:results")
    directory = tmp_path / "archive"
    sink = ArchiveSink(directory)
    sink.store([stored_group(ledger.client, "hq:", fields)])
    sink.close()
    ledger.client.flushall()
    name = f"{group_id('a')}.1"
    assert "score 1" in show(name, url=ledger.url, archive=directory)
    assert "in archive run/" in show(group_id("a"), directory)
    assert "1 runs" in show("run.no.0", url=ledger.url, archive=directory, expect=2)


def test_the_newest_life_of_a_purged_run_is_shown(ledger):
    publish(ledger, "a", scores=(0.0,))
    job = make_job("run", "a")
    assert "score 0" in show(job.trajectory_id, url=ledger.url)
    Runs(ledger).cancel("run", "wrong")
    Runs(ledger).purge("run")
    enqueue(ledger, job)
    epoch = begin(ledger, job).epoch
    publish_record(ledger, make_record(job, 1.0, epoch=epoch))
    assert "score 1" in show(job.trajectory_id, url=ledger.url)


def test_of_a_running_trajectory_the_ledger_is_shown_with_its_turns_so_far(ledger):
    job = make_job("run", "a")
    enqueue(ledger, job)
    assert "queued, attempt 1" in show(job.trajectory_id, url=ledger.url)
    begin(ledger, job)
    step = JournalStep(
        epoch=1, turn=0, basis="0" * 64, messages=MESSAGES[1:], record=Turn(latency_s=4.1)
    )
    ledger.client.rpush(f"hq:journal:{job.trajectory_id}", encode_entry(step))
    failure = Failure(cause="sandbox", stage="setup", type="SlotLost", message=HOSTILE[:-1])
    failed = AttemptRecord(attempt=1, epoch=1, failure=failure)
    line = failed.model_dump_json(exclude_defaults=True)
    ledger.client.hset(f"hq:traj:{job.trajectory_id}", "attempts", line)
    shown = show(job.trajectory_id, url=ledger.url)
    for part in ("running, stage load, worker w1", "→ terminal pytest", "SlotLost", "FAILED"):
        assert part in shown
    assert "turn 1" in shown  # as on the pages
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown)


def test_a_dead_letter_is_shown_with_its_reason_and_log(ledger):
    fields = {"cause": "poison", "reason": "killed 3 workers", "trajectory_id": "run.x.0"}
    ledger.client.xadd("hq:dead", {**fields, "died": "1 w1 agent\n", "log": f"last {HOSTILE[:20]}"})
    shown = show("run.x.0", url=ledger.url)
    assert "poison: killed 3 workers" in shown
    assert "worker died: 1 w1 agent" in shown
    assert "\x1b" not in shown


def test_a_redis_that_does_not_answer_is_named_when_the_archive_has_nothing(tmp_path):
    shown = show("run.a.0", url="redis://127.0.0.1:1/0", archive=tmp_path, expect=2)
    assert "no trajectory" in shown
    assert "127.0.0.1:1" in shown


# --- the terminal -------------------------------------------------------------------------


def test_no_record_sends_a_terminal_anything_but_our_own_styles():
    rng = random.Random(18)
    sound = json.loads(a_record(0).to_json())
    sound["messages"][0]["content"] = HOSTILE
    sound["instance_id"] = sound["status"] = HOSTILE
    records = [sound, *(record(rng) for _ in range(25)), *(nearly(rng, sound) for _ in range(25))]
    pieces = [piece for raw in records for piece in trajectory.trajectory(raw)]
    pieces += [piece for raw in records for piece in tables.tokens(raw)]
    pieces += tables.group(records)
    shown = "".join(command._rendered(pieces, is_terminal=True))
    rest = OURS.sub("", shown)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e]", rest)
    assert "␛]0;owned␇" in rest


def test_colours_of_a_tools_output_are_kept_as_ours():
    raw = json.loads(a_record(0).to_json())
    pieces = list(trajectory.trajectory(raw))
    styled = [piece for piece in pieces if "FAILED" in str(piece)]
    assert [(str(span.style), span.start, span.end) for span in styled[0].spans] == [
        ("color(1)", 14, 20)
    ]


def test_the_command_loads_neither_celery_nor_a_server():
    code = (
        "import sys, hermes_plugins.view.show, hermes_plugins.view.lookup.deployment, "
        "hermes_plugins.view.terminal.tables; "
        "print(*sorted({'celery', 'kombu', 'starlette', 'openai', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
