"""Unmodified programs in front of a real server: their calls have exact tokens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest
from live_server import LiveServer
from records import make_job
from trail_env import row

from hermes_queue.agent.programs.catalogue import find_program, pack
from hermes_queue.agent.tokens.invariants import token_violations
from hermes_queue.broker.enqueue import enqueue

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


def send(run, server, program, count, temperature):
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
    limits = {"max_turns": 6, "agent_timeout_s": 600}
    rows = [row(number) for number in range(count)]
    jobs = [
        make_job(
            "r", each["instance_id"], env="trail_env:ENV", item=each, agent=agent, limits=limits
        )
        for each in rows
    ]
    enqueue(jobs, ledger=run.ledger, items=packed.items)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("temperature", [1.0, 1.4])
@pytest.mark.parametrize("program", ["mini-swe-agent", "hermes-agent"])
def test_programs_get_one_sequence_per_path_and_score_the_same_when_asked_again(
    roomy_server, run, start_worker, rescored, programs, capsys, episodes, program, temperature
):
    start_worker()
    send(run, roomy_server, programs[program], episodes, temperature)
    records = run.records("r")
    assert [record.failure for record in records] == [None] * episodes
    events = Counter(event["event"] for record in records for event in record.events)
    result = rescored(records)
    figures = {
        "program": program,
        "temperature": temperature,
        "trajectories": len(records),
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
    assert [v for record in records for v in token_violations(record)] == []
    assert events["sequence_break"] == 0
    if program == "mini-swe-agent":  # which answers a reply without a call, and asks again
        assert sum(len(record.turns) > 1 for record in records) > episodes / 2
    assert result.returncode == 0, result.stdout + result.stderr
