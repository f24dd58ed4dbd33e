"""`hermes-queue export`: a dataset of what was finished before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ledger_steps import begin, enqueue
from ledger_steps import publish as publish_record
from records import make_job, make_record
from redis_server import RedisServer

from hermes_queue.bodies import codec
from hermes_queue.bodies.store import ClaimCheck, ObjectStore
from hermes_queue.cli import cli
from hermes_queue.ledger import Ledger
from hermes_queue.results.archive import ArchiveSink
from hermes_queue.results.trimming import trim
from hermes_queue.settings import ResultSettings, StoreSettings
from hermes_queue.sinks.datasets.jsonl import JsonlSink
from workers.bodies import Bodies


@pytest.fixture
def ledger(redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    monkeypatch.setenv("HERMES_QUEUE_ARCHIVE_DIRECTORY", str(tmp_path / "archive"))
    with redis_server.client(decode_responses=False) as client:
        yield Ledger(client, prefix="hq:", url=redis_server.url)


def publish(ledger: Ledger, instance: str, *scores: float | None, run_id: str = "run"):
    jobs = [make_job(run_id, instance, i, len(scores)) for i in range(len(scores))]
    enqueue(ledger, *jobs)
    for job, score in zip(jobs, scores, strict=True):
        begin(ledger, job)
        publish_record(ledger, make_record(job, score))
    return jobs


def export(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["export", *map(str, arguments)])


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_archive_and_stream_are_exported_once_and_again_only_what_is_new(ledger, tmp_path):
    publish(ledger, "old", 1.0, 0.0)
    ledger.client.xgroup_create("hq:results", "g", id="$")
    assert trim(
        ledger,
        ResultSettings(retention_s=0),
        interval_s=0,
        archive=ArchiveSink(tmp_path / "archive"),
    ).entries
    publish(ledger, "new", 1.0, None)
    out = tmp_path / "o.jsonl"
    done = export("--format", "jsonl", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    assert [row["instance_id"] for row in lines(out)] == ["old", "old", "new", "new"]
    publish(ledger, "newer", 1.0)
    assert "1 rows added" in export("--format", "jsonl", "--out", out).output
    assert "0 rows added" in export("--format", "jsonl", "--out", out).output


def test_records_in_the_object_store_are_exported_and_one_that_is_lost_is_named(ledger, tmp_path):
    store = tmp_path / "store"
    bodies = Bodies(ObjectStore(store.as_uri()), StoreSettings(from_bytes=1024), 1)
    for instance in ("a", "b", "c"):
        job = make_job("run", instance)
        enqueue(ledger, job)
        begin(ledger, job)
        record = make_record(job)
        body = codec.encode_record(record)
        bodies.publish_found(ledger, record, body, owner="w", finished_ttl_s=60)
        if instance == "b":
            claim = ClaimCheck.parse(ledger.client.get(f"hq:body:{job.trajectory_id}"))
    (store / "run" / claim.sha256).unlink()
    out = tmp_path / "o.jsonl"
    done = export("--format", "jsonl", "--out", out)
    assert [row["instance_id"] for row in lines(out)] == ["a", "c"]
    assert done.exit_code == 1
    assert f"its object {claim.url} is gone" in done.output
    store.rename(tmp_path / "hidden")
    store.write_text("not a directory")
    again = export("--format", "jsonl", "--out", tmp_path / "again.jsonl")
    assert again.exit_code == 1
    assert "does not answer" in str(again.exception) + again.output


def test_filters_are_those_of_the_sinks(ledger, tmp_path):
    publish(ledger, "a", 1.0, 0.0, None)
    publish(ledger, "b", 1.0, run_id="other")
    out = tmp_path / "o.jsonl"
    done = export("--format", "sharegpt", "--out", out, "--run", "run", "--min-score", 1, "--json")
    assert done.exit_code == 0, done.output
    assert [row["instance_id"] for row in lines(out)] == ["a"]
    assert '"no score": 1' in done.output
    assert '"score too low": 1' in done.output


def test_a_file_of_a_producer_becomes_any_format_without_redis(tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", "redis://127.0.0.1:1/0")
    source = tmp_path / "results.jsonl"
    with JsonlSink(source) as sink:
        for instance in "ab":
            sink.write(
                [make_record(make_job(instance=instance, sample=i, size=2)) for i in range(2)]
            )
        sink.write([make_record(make_job(instance="half", size=2))])
    out = tmp_path / "o.jsonl"
    done = export("--format", "sharegpt", "--from", source, "--out", out, "--complete")
    assert done.exit_code == 0, done.output
    assert len(lines(out)) == 4
    assert "1 incomplete group" in done.output


def test_records_that_are_gone_are_named_and_the_rest_is_written(ledger, tmp_path):
    [gone] = publish(ledger, "gone", 1.0)
    publish(ledger, "there", 1.0)
    ledger.client.delete(f"hq:body:{gone.trajectory_id}")
    out = tmp_path / "o.jsonl"
    done = export("--format", "jsonl", "--out", out)
    assert done.exit_code == 1
    assert f"the body of {gone.trajectory_id} is gone" in done.output
    assert [row["instance_id"] for row in lines(out)] == ["there"]


@pytest.mark.parametrize(
    ("line", "expected", "code"),
    [
        ('{"schema_version": 9}', "upgrade hermes-queue", 1),
        ('{"schema_version": 1}', "results.jsonl:1: is not a record: run_id", 2),
        ("{", "results.jsonl:1: is not a record", 2),
    ],
)
def test_lines_that_are_no_records_of_ours_are_named(line, expected, code, tmp_path):
    source = tmp_path / "results.jsonl"
    source.write_text(line + "\n")
    done = export("--format", "jsonl", "--from", source, "--out", tmp_path / "o.jsonl")
    assert done.exit_code == code, done.output
    assert expected in done.output


def test_an_unreachable_redis_is_exit_4(tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("HERMES_QUEUE_ARCHIVE_DIRECTORY", str(tmp_path / "archive"))
    assert export("--format", "jsonl", "--out", tmp_path / "o.jsonl").exit_code == 4
    done = export("--format", "jsonl", "--out", tmp_path / "o.jsonl", "--archive-only")
    assert done.exit_code == 0, done.output


def test_commands_teach_their_use():
    for name in ("export", "sink"):
        text = CliRunner().invoke(cli, [name, "--help"]).output
        assert "exit codes:" in text
        assert "hermes-queue " + name in text


def test_only_what_people_labelled_is_exported(tmp_path):
    records = [make_record(make_job("run", "i", n, 2), 1.0) for n in range(2)]
    source, reviews = tmp_path / "in.jsonl", tmp_path / "reviews.jsonl"
    source.write_text("".join(record.to_json() + "\n" for record in records))
    review = {"trajectory_id": records[1].trajectory_id, "label": "fine", "at": 1.0}
    reviews.write_text(json.dumps(review) + "\n")
    out, common = tmp_path / "out.jsonl", ("--format", "sharegpt", "--from", source, "--reviewed")
    done = export(*common, "fine", "--reviews", reviews, "--out", out)
    assert done.exit_code == 0, done.output
    assert "refused: 1 label" in done.stderr
    assert len(lines(out)) == 1
    assert export(*common, "fine", "--out", out).exit_code == 2
    assert export(*common, "good", "--reviews", reviews, "--out", out).exit_code == 2
    missing = export(*common, "fine", "--reviews", tmp_path / "none", "--out", out)
    assert "no such file" in missing.stderr
