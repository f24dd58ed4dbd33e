"""Rows chosen, ordered and estimated by what Redis remembers of their tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_server import RedisServer
from sums_env import ENV

from hermes_queue.bodies import codec
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.tasks import Observation, Solver, TaskMemory
from hermes_queue.wire.names import group_key, make_ids
from producers.base import Producer, main

pytestmark = pytest.mark.redis

PRODUCER = Producer(name="sums", env="sums_env:ENV", description="Sums.")
NAMES = ["easy", "hard", "middling", "flaky", "deadly", "new"]
ORACLE = Solver("agent:oracle")


def row(name: str) -> dict[str, object]:
    return {"instance_id": name, "question": "?", "answer": 1}


def sha256(name: str) -> str:
    item = ENV.Item.model_validate(row(name))
    return codec.item_sha256(item.model_dump(mode="json", by_alias=True, round_trip=True))


@pytest.fixture
def ledger(redis_server: RedisServer, tmp_path: Path, monkeypatch) -> Iterator[Ledger]:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row(n)) + "\n" for n in NAMES))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    ledger = Ledger.connect(url=redis_server.url)
    yield ledger
    ledger.close()


@pytest.fixture
def memory(ledger: Ledger) -> TaskMemory:
    def seen(name: str, *scores: float, **facts) -> list[Observation]:
        env, sha = "sums_env:ENV", sha256(name)
        return [Observation(env, sha, name, solver=ORACLE, score=s, **facts) for s in scores]

    memory = TaskMemory(ledger)
    memory.add(
        [
            *seen("easy", 1, 1, 1, 1, seconds=5.0, cost_usd=0.5),
            *seen("hard", 0, 0, 0, 0, seconds=60.0, cost_usd=0.5),
            *seen("middling", 0, 1, 0, 1, seconds=20.0, cost_usd=0.5),
            *seen("flaky", 1, seconds=30.0, regraded=True),
            *seen("deadly", 1, seconds=10.0),
        ]
    )
    entry = f"hq:task:sums_env:ENV:{sha256('deadly')}"
    deadly = json.loads(ledger.client.get(entry)) | {"deaths": 3}
    ledger.client.set(entry, json.dumps(deadly))
    return memory


def produce(*flags: str) -> int:
    return main(PRODUCER, ["--dataset", "rows.jsonl", "--items", "all", "--run-id", "r", *flags])


def keys_of_lane(ledger: Ledger) -> list[bytes]:
    return [key for key in ledger.client.scan_iter("hq:v1.train*") if b"retry" not in key]


def enqueued(ledger: Ledger) -> list[str]:
    """Names of the rows whose jobs wait, in the order in which they were sent."""
    lists = [ledger.client.lrange(key, 0, -1) for key in keys_of_lane(ledger)]
    messages = [each for found in lists for each in reversed(found)]
    ids = [json.loads(message)["body"] for message in messages]
    names = {make_ids("r", group_key(name), 0)[1]: name for name in NAMES}
    return [name for text in ids for sent, name in names.items() if sent in text]


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        (("--skip-solved",), ["hard", "middling", "flaky", "deadly", "new"]),
        (("--skip-impossible",), ["easy", "middling", "flaky", "deadly", "new"]),
        (("--pass-rate", "0.1-0.9"), ["middling", "flaky", "deadly", "new"]),
        (("--skip-solved", "--min-attempts", "1"), ["hard", "middling", "new"]),
        (("--skip-flaky", "--skip-deadly"), ["easy", "hard", "middling", "new"]),
        (("--skip-solved", "--known-by", "qwen"), NAMES),
    ],
    ids=" ".join,
)
def test_rows_are_left_out_by_what_is_known(memory, ledger, flags, left, capsys):
    assert produce(*flags) == 0
    assert enqueued(ledger) == left


def test_as_many_rows_are_taken_as_were_asked_for(memory, ledger):
    assert produce("--skip-solved", "--items", "2") == 0
    assert enqueued(ledger) == ["hard", "middling"]


def test_what_is_left_out_is_said_with_its_reason(memory, capsys):
    assert produce("--skip-impossible", "--skip-flaky") == 0
    said = capsys.readouterr().err
    assert "skipped 1 rows (rows.jsonl:2): it was never solved (--skip-impossible)" in said
    assert "(--skip-flaky)" in said


def test_the_longest_are_sent_first_and_new_ones_count_like_the_mean(memory, ledger):
    assert produce("--longest-first") == 0
    assert enqueued(ledger) == ["hard", "flaky", "new", "middling", "deadly", "easy"]


def test_a_run_is_estimated(memory, ledger, capsys):
    ledger.beat("w", {"lanes": ["train"], "slots": 10}, ttl_s=60)
    ledger.beat("odd", {"lanes": 3, "slots": "x"}, ttl_s=60)
    paid = Observation("sums_env:ENV", sha256("easy"), solver=Solver("m"), cost_usd=0.5)
    memory.add([paid])
    assert produce("--estimate", "--total-timeout", "70") == 0
    said = capsys.readouterr().err
    assert "by 5 of 6 trajectories" in said
    assert "2.5 min of slot time, 15 s with the 10 slots of the lane, 3.00 USD" in said


def test_without_a_fleet_there_is_no_memory(memory, monkeypatch, capsys):
    monkeypatch.delenv("HERMES_QUEUE_REDIS_URL")
    assert produce("--skip-solved") == 2
    assert "--skip-solved: a run that is made on this machine alone" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["1-0", "x", "0.5", "0-2"])
def test_a_wrong_band_is_refused(value, capsys):
    assert produce("--pass-rate", value) == 2
    assert "is not LOW-HIGH; write e.g. 0.1-0.9" in capsys.readouterr().err


def test_rows_that_are_known_to_kill_workers_are_named_before_they_run(ledger, capsys):
    ledger.client.hset("hq:poison", sha256("deadly"), "{}")
    assert produce() == 0
    assert "warning: workers died under 1 of these rows (deadly)" in capsys.readouterr().err
    assert len(enqueued(ledger)) == 6
