"""Unmodified programs in front of a real server: their calls have exact tokens."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_programs import enqueue_trails, programs_in
from live_server import LiveServer

from hermes_queue.agent.tokens.invariants import token_violations
from hermes_queue.tools import load_tool

HERE = Path(__file__).parent
CONTEXT_TOKENS = 16384
"""Programs begin with a prompt of several thousand tokens."""


@pytest.fixture(scope="module")
def program_server(live) -> Iterator[LiveServer]:
    """A server of the model that knows the programs, with a context that they fit into."""
    name = "--max-model-len" if live.kind == "vllm" else "--context-length"
    running = live.server(name, str(CONTEXT_TOKENS), model=live.program_model)
    try:
        yield running.start()
    finally:
        running.kill9()


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> dict[str, str]:
    """By name, what `program` is set to."""
    return programs_in(tmp_path_factory.mktemp("programs"))


def send(run, server, program, count, temperature, *, max_turns):
    enqueue_trails(
        run.ledger,
        program,
        range(count),
        run_id="r",
        url=server.url,
        params={"mode": "tokens", "server": server.kind, "parser": "hermes"},
        sampling={"max_tokens": 64, "temperature": temperature},
        max_turns=max_turns,
    )


@pytest.fixture(scope="module")
def trail_program(tmp_path_factory) -> str:
    """The program in `trail_program.py`, which needs no installation."""
    source = (HERE / "trail_program.py").read_text()
    literal = re.sub(r"{([a-z_]+)}", r"{{\1}}", source)
    tool = json.dumps(load_tool("terminal").schema())
    file = tmp_path_factory.mktemp("programs") / "trail.toml"
    lines = [
        "[programs.trail]",
        "run = 'python3 {home}/trail.py {task}'",
        "[programs.trail.env]",
        "TRAIL_URL = '{url}'",
        "TRAIL_KEY = '{key}'",
        f"TRAIL_TOOL = {json.dumps(tool)}",
        "[programs.trail.files]",
        f"'{{home}}/trail.py' = {json.dumps(literal)}",
    ]
    file.write_text("\n".join(lines))
    return str(file)


def breaks_by(record):
    """Turns that begin a sequence because the program changed what was said, and others that do."""
    # The place of the change is named where the program sent another conversation.
    changed = {e["turn"] for e in record.events if e["event"] == "rerendered" and "at" in e}
    kinds = ("sequence_break", "rerendered")
    broken = {event["turn"] for event in record.events if event["event"] in kinds}
    return {"program": len(broken & changed), "own": len(broken - changed)}


def is_anchored(record, turn):
    """Whether the prompt begins with all tokens of the turn that it continues."""
    if turn.parent is None:
        return False
    above = record.turns[turn.parent]
    held = (*above.prompt_ids, *above.completion_ids)
    return tuple(turn.prompt_ids[: len(held)]) == held


def shown(records, result, capsys, began, **more):
    """Print what was measured; returns it."""
    turns = [(record, turn) for record in records for turn in record.turns]
    breaks = [breaks_by(record) for record in records]
    figures = {
        **more,
        "server": turns[0][1].server_version,
        "trajectories": len(records),
        "solved": sum(record.score == 1.0 for record in records),
        "turns": len(turns),
        "turns_most": max(len(record.turns) for record in records),
        "anchored": sum(is_anchored(record, turn) for record, turn in turns),
        "breaks": sum(each["own"] for each in breaks),
        "breaks_by_program": sum(each["program"] for each in breaks),
        "sampled": sum(len(turn.completion_ids) for _, turn in turns),
        "prompt_most": max(len(turn.prompt_ids) for _, turn in turns),
        "calls": [
            sum(getattr(r.tool_calls, k) for r in records) for k in ("attempted", "schema_valid")
        ],
        "sequences": sum(len(record.sequences) for record in records),
        "branches": Counter(b.label for record in records for b in record.branches),
        "stops": Counter(record.stop_reason for record in records),
        "events": Counter(_named(event) for record in records for event in record.events),
        "rescored": result.stdout.splitlines(),
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    with capsys.disabled():
        print(f"\n{json.dumps(figures)}", flush=True)
    return figures


def _named(event):
    return f"{event['event']} {event.get('reason', '')}".strip()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("temperature", [1.0, 1.4])
def test_turns_of_a_program_are_one_sequence_although_it_rewrites_its_history(
    server, run, start_worker, rescored, trail_program, capsys, episodes, temperature
):
    start_worker()
    began = time.monotonic()
    send(run, server, trail_program, episodes, temperature, max_turns=12)
    records = run.records("r")
    assert [record.failure for record in records] == [None] * episodes
    result = rescored(records)
    figures = shown(
        records, result, capsys, began, program="trail_program.py", temperature=temperature
    )
    assert [v for record in records for v in token_violations(record)] == []
    assert [len(record.sequences) for record in records] == [1] * episodes
    assert (figures["breaks"], figures["breaks_by_program"]) == (0, 0)
    # At 1.4 many calls are misspelt, and the model gives up on what it is then shown.
    assert figures["turns"] > episodes * (3 if temperature == 1.0 else 1.5)
    if temperature == 1.0:
        assert figures["solved"] > episodes / 2
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.timeout(5400)
@pytest.mark.parametrize("temperature", [1.0, 1.4])
@pytest.mark.parametrize("program", ["mini-swe-agent", "hermes-agent"])
def test_no_sequence_of_a_large_program_breaks_unless_it_rewrites_its_history(
    program_server, run, start_worker, rescored, programs, capsys, episodes, program, temperature
):
    start_worker()
    began = time.monotonic()
    send(run, program_server, programs[program], episodes, temperature, max_turns=10)
    records = run.records("r")
    assert [record.failure for record in records] == [None] * episodes
    result = rescored(records)
    figures = shown(records, result, capsys, began, program=program, temperature=temperature)
    assert [v for record in records for v in token_violations(record)] == []
    assert figures["breaks"] == 0
    # Each but the first turns of a trajectory continues a reply whose text came back changed.
    assert figures["turns"] > episodes * 3
    assert figures["anchored"] > figures["turns"] / 2
    assert result.returncode == 0, result.stdout + result.stderr
