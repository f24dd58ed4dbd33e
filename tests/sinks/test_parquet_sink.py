"""Parquet shards: each row once, whatever happened before."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from records import make_job, make_record
from small_files import small_files

from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.models import (
    AgentSpec,
    AttemptRecord,
    Failure,
    Message,
    TokenSequence,
    TrajectoryProvenance,
    Turn,
    Usage,
)
from hermes_queue.sinks.datasets.parquet import ParquetSink, ShardOptions

pytestmark = pytest.mark.xdist_group("sinks")
"""One process imports pyarrow, and forks sinks and Atropos servers."""


def records(count: int, *, instance: str = "i", score: float | None = 1.0) -> list:
    return [
        make_record(make_job(instance=instance, sample=n, size=64), score) for n in range(count)
    ]


def rows(folder: Path) -> list[dict]:
    return [
        row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()
    ]


def test_token_sequences_come_back_bit_for_bit(tmp_path: Path) -> None:
    logprobs = (0.0, -0.10000000149011612, -3.4e38)
    sequences = (
        TokenSequence(ids=(0, 2**31 - 1, 7), loss_mask=(0, 1, 1), logprobs=logprobs),
        TokenSequence(ids=(5,), loss_mask=(1,), logprobs=(-0.5,)),
    )
    first, second, third = records(3)
    with ParquetSink(tmp_path) as sink:
        sink.write(
            [
                first.model_copy(update={"sequences": sequences}),
                second.model_copy(update={"sequences": None}),
                third.model_copy(update={"sequences": ()}),
            ]
        )
    found = [row["sequences"] for row in rows(tmp_path)]
    assert found[1:] == [None, []]
    back = tuple(TokenSequence.model_validate(sequence) for sequence in found[0])
    # -3.4e38 is no float32; the others are, as capture made them.
    assert back[0].ids == sequences[0].ids
    assert back[0].logprobs[:2] == logprobs[:2]
    assert back[1] == sequences[1]


def test_a_row_tells_the_outcome_and_keeps_hosts_to_itself(tmp_path: Path) -> None:
    with ParquetSink(tmp_path) as sink:
        sink.write([*records(1), *records(1, instance="lost", score=None)])
    good, lost = rows(tmp_path)
    assert (good["score"], good["status"], good["failure_cause"]) == (1.0, "completed", None)
    assert (lost["score"], lost["status"], lost["failure_cause"]) == (None, "failed", "sandbox")
    assert good["messages"][0]["content"] == "1+1"
    assert not {"host", "worker", "sandbox_id"} & set(json.loads(good["provenance"]))
    assert "base_url" not in json.loads(good["agent"])


def test_a_row_has_no_transcript_and_no_host_of_attempts_that_failed(tmp_path: Path) -> None:
    [record] = records(1)
    failure = Failure(cause="model", stage="agent", type="ModelError", message="503")
    asked = Message(role="user", content="1+1")
    facts = {"attempt": 1, "epoch": 1, "failure": failure, "stage_seconds": {"agent": 0.5}}
    attempt = AttemptRecord(**facts, host="here", usage=Usage(prompt_tokens=7), messages=(asked,))
    with ParquetSink(tmp_path) as sink:
        sink.write([record.model_copy(update={"attempts": (attempt,)})])
    [row] = rows(tmp_path)
    assert json.loads(row["attempts"]) == [facts | {"failure": failure.model_dump()}]


MESSAGE = (
    "http://u:pw@models.internal:8000/v1: 3 tries failed, last: ClientConnectorError: Cannot "
    "connect to host models.internal:8000 ssl:default [Connect call failed ('10.1.2.3', 8000)], "
    "redirected to https://other.internal/v1 by worker w7@gpu-box-3"
)


@pytest.mark.parametrize(
    "base_url", [None, "http://u:pw@models.internal:8000/v1,http://b.internal/v1"]
)
def test_a_failed_call_does_not_tell_where_it_went(tmp_path: Path, base_url: str | None) -> None:
    failure = Failure(cause="model", stage="agent", type="ModelError", message=MESSAGE)
    event = {"event": "model_retry", "reason": MESSAGE, "server": "models.internal", "try": 1}
    [record] = records(1, score=None)
    changes = {
        "failure": failure,
        "attempts": (AttemptRecord(attempt=1, epoch=1, failure=failure),),
        "events": (event, {"event": "tool_call_unparsed", "text": "answer 1.2.3 at 10:20:30"}),
        "agent": AgentSpec(kind="openai", model="m", base_url=base_url),
        "turns": (Turn(server="http://models.internal:8000/v1"),),
        "provenance": TrajectoryProvenance(host="gpu-box-3", worker="w7@gpu-box-3"),
    }
    with ParquetSink(tmp_path) as sink:
        sink.write([record.model_copy(update=changes)])
    [row] = rows(tmp_path)
    text = json.dumps(row, default=str)
    for place in ("internal", "10.1.2.3", "gpu-box", "pw@"):
        assert place not in text, place
    assert "3 tries failed, last: ClientConnectorError" in row["failure_message"]
    first, second = json.loads(row["events"])
    assert first == {"event": "model_retry", "reason": row["failure_message"], "try": 1}
    assert second["text"] == "answer 1.2.3 at 10:20:30"
    [attempt] = json.loads(row["attempts"])
    assert attempt["failure"]["message"] == row["failure_message"]


def test_shards_end_where_they_should_and_ids_are_written_once(tmp_path: Path) -> None:
    made = records(7)
    with ParquetSink(tmp_path, ShardOptions(shard_rows=3)) as sink:
        assert sink.write(made[:2]) == 2
        assert sink.shards == []
        assert sink.write(made[:4]) == 2
        assert [path.name for path in sink.shards] == ["train-00000.parquet"]
        assert sink.write(made) == 3
    with ParquetSink(tmp_path, ShardOptions(shard_rows=3)) as sink:
        assert sink.write(made) == 0
    assert sorted(row["sample_index"] for row in rows(tmp_path)) == list(range(7))


def test_an_old_journal_becomes_a_shard_without_new_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ParquetSink(tmp_path, ShardOptions(shard_s=60)) as sink:
        sink.write(records(1))
        sink.write(())
        assert sink.shards == []
        later = time.monotonic() + 61
        # Not the module's function: event loops of other threads live by it.
        clock = SimpleNamespace(monotonic=lambda: later)
        monkeypatch.setattr("hermes_queue.sinks.datasets.parquet.time", clock)
        sink.write(())
        assert len(sink.shards) == 1


def test_a_full_disk_refuses_what_it_has_no_room_for_and_keeps_the_rest(tmp_path: Path) -> None:
    made = records(12)
    with ParquetSink(tmp_path) as sink:
        sink.write(made[:4])
        size = (tmp_path / ".journal").stat().st_size
        with (
            small_files(size + 50),
            pytest.raises(HermesQueueError, match="nothing of this group was kept"),
        ):
            sink.write(made[4:8])
        assert sink.write(made) == 8
    assert sorted(row["sample_index"] for row in rows(tmp_path)) == list(range(12))


def test_a_shard_without_room_waits_in_the_journal(tmp_path: Path) -> None:
    made = records(6)
    sink = ParquetSink(tmp_path, ShardOptions(shard_rows=100))
    sink.write(made)
    with small_files(100), pytest.raises(HermesQueueError, match="cannot be written"):
        sink.close()
    assert [path.name for path in tmp_path.iterdir()] == [".journal"]
    with ParquetSink(tmp_path) as again:
        assert again.write(made) == 0
    assert len(rows(tmp_path)) == 6


def test_a_torn_journal_loses_only_what_was_never_acknowledged(tmp_path: Path) -> None:
    made = records(4)
    sink = ParquetSink(tmp_path)
    sink.write(made[:2])
    sink.write(made[2:])
    whole = (tmp_path / ".journal").read_bytes()
    sink._journal.close()  # as a kill would
    (tmp_path / ".journal").write_bytes(whole[:-9])
    with ParquetSink(tmp_path) as again:
        assert again.write(made) == 2
    assert sorted(row["sample_index"] for row in rows(tmp_path)) == [0, 1, 2, 3]


def test_a_journal_damaged_in_its_middle_is_an_error_and_left_as_it_is(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    sink.write(records(2))
    sink.write(records(2, instance="j"))
    sink._journal.close()
    data = bytearray((tmp_path / ".journal").read_bytes())
    data[60] ^= 0xFF
    (tmp_path / ".journal").write_bytes(data)
    with pytest.raises(ConfigurationError, match="is damaged at byte"):
        ParquetSink(tmp_path)
    assert (tmp_path / ".journal").read_bytes() == data


def test_shards_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "train-00000.parquet")
    with pytest.raises(ConfigurationError, match="was not written by this version"):
        ParquetSink(tmp_path)
    (tmp_path / "train-00000.parquet").write_bytes(b"no parquet")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        ParquetSink(tmp_path)


def test_a_directory_has_one_writer(tmp_path: Path) -> None:
    with ParquetSink(tmp_path), pytest.raises(ConfigurationError, match="another process"):
        ParquetSink(tmp_path)


def test_a_folder_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"is a file|cannot be written"):
        ParquetSink(tmp_path / "file")
    if os.geteuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(ConfigurationError, match="cannot be written"):
            ParquetSink(tmp_path / "closed" / "out")


@pytest.mark.parametrize("fails", ["the journal", "the directory"])
def test_a_device_that_fails_after_a_shard_has_its_name_doubles_no_row(
    fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = records(4)
    sink = ParquetSink(tmp_path)
    sink.write(made)
    place = "os.ftruncate" if fails == "the journal" else "hermes_queue.disk.durable.sync_directory"
    with monkeypatch.context() as broken:
        broken.setattr(place, lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises((HermesQueueError, OSError)):
            sink.finish_shard()
    sink.write(records(5))
    sink.close()
    assert sorted(row["sample_index"] for row in rows(tmp_path)) == list(range(5))


def test_directories_that_are_made_for_a_dataset_survive_a_power_loss_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = set()
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with ParquetSink(tmp_path / "new" / "folder"):
        pass
    assert {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "folder")} <= synced
