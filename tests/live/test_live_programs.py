"""Unmodified programs in front of a real server: their calls have exact tokens."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_server import LiveServer
from records import make_job
from trail_env import row

from hermes_queue.agent.programs.catalogue import find_program, pack
from hermes_queue.agent.tokens.invariants import token_violations
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.tools import load_tool

HERE = Path(__file__).parent
CONTEXT_TOKENS = 16384
"""Programs begin with a prompt of several thousand tokens."""


@pytest.fixture(scope="module")
def roomy_server(live) -> Iterator[LiveServer]:
    """A server with a context that programs fit into."""
    name = "--max-model-len" if live.kind == "vllm" else "--context-length"
    running = live.server(name, str(CONTEXT_TOKENS))
    try:
        yield running.start()
    finally:
        running.kill9()


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> dict[str, str]:
    """By name, what `program` is set to."""
    file = tmp_path_factory.mktemp("programs") / "programs.toml"
    file.write_text(
        "[programs.hermes-terminal]\nlike = 'hermes-agent'\n"
        "run = '{agent}/bin/hermes -t terminal -z \"$(cat {task})\"'\n"
    )
    return {"mini-swe-agent": "mini-swe-agent", "hermes-agent": str(file)}


def send(run, server, program, count, temperature, *, max_turns):
    packed = pack(find_program(program))
    agent = {
        "kind": "command",
        "model": "tiny",
        "base_url": server.url,
        "params": {
            "program": packed.reference,
            "mode": "tokens",
            "server": server.kind,
            "parser": "hermes",
        },
        "sampling": {"max_tokens": 64, "temperature": temperature},
    }
    limits = {"max_turns": max_turns, "agent_timeout_s": 600}
    rows = [row(number) for number in range(count)]
    jobs = [
        make_job(
            "r", each["instance_id"], env="trail_env:ENV", item=each, agent=agent, limits=limits
        )
        for each in rows
    ]
    enqueue(jobs, ledger=run.ledger, items=packed.items)


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


def shown(records, result, capsys, **more):
    """Print what was measured; returns the events by kind."""
    events = Counter(event["event"] for record in records for event in record.events)
    figures = {
        **more,
        "trajectories": len(records),
        "solved": sum(record.score == 1.0 for record in records),
        "turns": sum(len(record.turns) for record in records),
        "sampled": sum(len(t.completion_ids) for record in records for t in record.turns),
        "sequences": sum(len(record.sequences) for record in records),
        "branches": Counter(b.label for record in records for b in record.branches),
        "stops": Counter(record.stop_reason for record in records),
        "events": events,
        "rescored": result.stdout.splitlines(),
    }
    with capsys.disabled():
        print(f"\n{json.dumps(figures)}", flush=True)
    return events


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("temperature", [1.0, 1.4])
def test_turns_of_a_program_are_one_sequence_although_it_rewrites_its_history(
    server, run, start_worker, rescored, trail_program, capsys, episodes, temperature
):
    start_worker()
    send(run, server, trail_program, episodes, temperature, max_turns=12)
    records = run.records("r")
    assert [record.failure for record in records] == [None] * episodes
    result = rescored(records)
    events = shown(records, result, capsys, program="trail", temperature=temperature)
    assert [v for record in records for v in token_violations(record)] == []
    assert [len(record.sequences) for record in records] == [1] * episodes
    assert (events["sequence_break"], events["rerendered"]) == (0, 0)
    # At 1.4 many calls are misspelt, and the model gives up on what it is then shown.
    turns = sum(len(record.turns) for record in records)
    assert turns > episodes * (3 if temperature == 1.0 else 1.5)
    if temperature == 1.0:
        assert sum(record.score == 1.0 for record in records) > episodes / 2
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("temperature", [1.0, 1.4])
@pytest.mark.parametrize("program", ["mini-swe-agent", "hermes-agent"])
def test_calls_of_large_programs_have_exact_tokens(
    roomy_server, run, start_worker, rescored, programs, capsys, episodes, program, temperature
):
    """The tiny model knows none of their prompts: most replies are of no use to them."""
    start_worker()
    send(run, roomy_server, programs[program], episodes, temperature, max_turns=6)
    records = run.records("r")
    assert [record.failure for record in records] == [None] * episodes
    result = rescored(records)
    shown(records, result, capsys, program=program, temperature=temperature)
    assert [v for record in records for v in token_violations(record)] == []
    # mini-swe-agent leaves out replies that it cannot use: its own rewriting, and no break of ours.
    assert all(len(record.sequences) <= len(record.turns) for record in records)
    assert result.returncode == 0, result.stdout + result.stderr
