"""The file of results: each id once, whatever happened before."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from small_files import small_files

from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.models import AgentSpec, Message, ScoredTrajectory, make_ids
from hermes_queue.sinks.datasets.jsonl import JsonlSink


def trajectory(sample: int, text: str = "done") -> ScoredTrajectory:
    group_id, trajectory_id = make_ids("run", "item", sample)
    return ScoredTrajectory(
        run_id="run",
        group_id=group_id,
        trajectory_id=trajectory_id,
        sample_index=sample,
        group_size=4,
        env="sums",
        instance_id='an id with "quotes"\nand lines',
        agent=AgentSpec(),
        attempt=1,
        epoch=1,
        status="completed",
        stop_reason="submitted",
        score=1.0,
        messages=(Message(role="assistant", content=text),),
    )


def read(path: Path) -> list[ScoredTrajectory]:
    return [ScoredTrajectory.model_validate_json(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "results.jsonl"


def test_a_trajectory_comes_back_as_it_was(path: Path) -> None:
    record = trajectory(0, text="\u2028 é \x00 line\nline")
    with JsonlSink(path) as sink:
        assert sink.write([record]) == 1
    assert ScoredTrajectory.model_validate_json(path.read_bytes()) == record


def test_a_redelivered_trajectory_is_written_once(path: Path) -> None:
    with JsonlSink(path) as sink:
        sink.write([trajectory(0), trajectory(1)])
        assert sink.write([trajectory(1), trajectory(2)]) == 1
    assert [t.sample_index for t in read(path)] == [0, 1, 2]


def test_the_first_record_of_an_id_stays_when_the_file_is_opened_again(path: Path) -> None:
    with JsonlSink(path) as sink:
        sink.write([trajectory(0, "first")])
    with JsonlSink(path) as sink:
        assert sink.write([trajectory(0, "second"), trajectory(1)]) == 1
    assert [t.messages[0].content for t in read(path)] == ["first", "done"]


def test_a_truncated_last_line_is_removed_and_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with JsonlSink(path) as sink:
        sink.write([trajectory(0), trajectory(1)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with caplog.at_level(logging.WARNING), JsonlSink(path) as sink:
        assert sink.repaired_bytes > 0
        assert len(sink.held) == 1
        sink.write([trajectory(1)])
    assert path.read_bytes() == whole
    assert f"{path}:2" in caplog.text


def test_a_last_line_that_only_lacks_its_newline_is_kept(path: Path) -> None:
    with JsonlSink(path) as sink:
        sink.write([trajectory(0)])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    with JsonlSink(path) as sink:
        assert sink.repaired_bytes == 0
        assert sink.write([trajectory(0), trajectory(1)]) == 1
    assert len(read(path)) == 2


@pytest.mark.parametrize("content", ['{"instance_id": "a row"}\n', "some text", "[1]\n", '{"x'])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match="is not a trajectory record"):
        JsonlSink(path)
    assert path.read_text() == content


def test_two_writers_of_one_file_are_refused(path: Path) -> None:
    with (
        JsonlSink(path),
        pytest.raises(ConfigurationError, match="another process is writing"),
    ):
        JsonlSink(path)


def test_records_with_reordered_fields_are_recognised(path: Path) -> None:
    path.parent.mkdir()
    record = json.loads(trajectory(3).model_dump_json())
    path.write_text(json.dumps(dict(reversed(record.items()))) + "\n")
    with JsonlSink(path) as sink:
        assert sink.write([trajectory(3)]) == 0


def test_a_full_disk_keeps_what_was_there_and_says_so(path: Path) -> None:
    with JsonlSink(path) as sink:
        sink.write([trajectory(0)])
        before = path.read_bytes()
        with (
            small_files(len(before) + 100),
            pytest.raises(HermesQueueError, match="nothing of this group was kept"),
        ):
            sink.write([trajectory(1)])
        assert path.read_bytes() == before
        assert sink.write([trajectory(1)]) == 1
    assert len(read(path)) == 2


def test_a_device_is_no_place_for_results() -> None:
    with pytest.raises(ConfigurationError, match="not a regular file"):
        JsonlSink(Path("/dev/null"))


def test_an_unwritable_path_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        JsonlSink(tmp_path / "file" / "results.jsonl")


@pytest.mark.parametrize("name", ["results.parquet", "results.jsonl.gz", "results.csv"])
def test_a_name_that_promises_another_format_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="JSON lines"):
        JsonlSink(tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("left", [b"", b'{"schema_version":1,"run_id"'], ids=["none", "some"])
def test_zeros_that_a_power_loss_left_at_the_end_are_removed(path: Path, left: bytes) -> None:
    with JsonlSink(path) as sink:
        sink.write([trajectory(0)])
    whole = path.read_bytes()
    path.write_bytes(whole + left + b"\0" * 4096)
    with JsonlSink(path) as sink:
        assert sink.repaired_bytes == len(left) + 4096
    assert path.read_bytes() == whole
