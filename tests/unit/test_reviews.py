"""Labels of people: an append-only file of JSON lines."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path

import pytest

from hermes_queue.bodies import reviews
from hermes_queue.bodies.reviews import ReviewFile, TrajectoryReview, made_review
from hermes_queue.errors import ConfigurationError, InputError


def review(name: str, label: str | None = "fine", note: str = "") -> TrajectoryReview:
    given = {"trajectory_id": name, "label": label, "note": note}
    return made_review(given, "ada", 1.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reviews.jsonl"


def test_the_last_label_of_a_trajectory_counts(path):
    file = ReviewFile(path)
    for each in (review("a", "cheating"), review("b", "unsure"), review("a", note="after all")):
        file.add(each)
    assert ReviewFile(path).labels() == file.labels() == {"b": "unsure", "a": "fine"}
    assert file.read()["a"].note == "after all"
    assert len(path.read_text().splitlines()) == 3


def test_a_label_can_be_taken_back(path):
    file = ReviewFile(path)
    file.add(review("a"))
    file.add(review("a", None))
    assert file.labels() == {}
    assert file.label_of("a") is None


def test_the_file_is_its_owners_alone(path):
    ReviewFile(path).add(review("a"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_torn_line_costs_no_other_review(path):
    file = ReviewFile(path)
    file.add(review("a"))
    with path.open("a") as writer:
        writer.write('{"trajectory_id": "b", "lab')
    assert file.labels() == {"a": "fine"}
    file.add(review("c"))
    for each in (file, ReviewFile(path)):
        assert each.labels() == {"a": "fine", "c": "fine"}
        assert each.damaged_lines == 1


def test_a_line_that_was_written_in_two_parts_counts_once_it_is_whole(path):
    file = ReviewFile(path)
    line = review("b").model_dump_json()
    path.write_text(line[:20])
    assert file.labels() == {}
    with path.open("a") as writer:
        writer.write(line[20:] + "\n")
    assert file.labels() == {"b": "fine"}
    assert file.damaged_lines == 0


def test_lines_that_are_no_reviews_are_counted_and_passed_over(path):
    odd = [
        '{"trajectory_id": "a", "label": "good", "at": 1}',
        '{"trajectory_id": "", "label": "fine", "at": 1}',
        '{"trajectory_id": "a", "label": "fine", "at": NaN}',
        '{"trajectory_id": 3, "label": "fine", "at": 1}',
        "[" * 5000,
        "\udcff",
        "x" * (reviews.LINE_BYTES_MAX * 3),
    ]
    text = "\n".join([*odd, "", review("b").model_dump_json()])
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    file = ReviewFile(path)
    assert file.labels() == {"b": "fine"}
    assert file.damaged_lines == len(odd)


def test_what_another_process_adds_is_seen(path):
    ours, theirs = ReviewFile(path), ReviewFile(path)
    theirs.add(review("a"))
    ours.add(review("b"))
    assert ours.labels() == theirs.labels() == {"a": "fine", "b": "fine"}


def test_a_file_that_was_replaced_or_removed_is_read_anew(path):
    file = ReviewFile(path)
    file.add(review("a"))
    other = path.with_name("other")
    other.write_text(review("b").model_dump_json() + "\n")
    os.replace(other, path)
    assert file.labels() == {"b": "fine"}
    path.unlink()
    assert file.labels() == {}


def test_an_unchanged_file_is_not_read_again(path):
    file = ReviewFile(path)
    file.add(review("a"))
    assert file.read() is file.read()


def test_a_file_that_stays_locked_is_an_error(path, monkeypatch):
    monkeypatch.setattr(reviews, "_LOCK_S", 0)
    file = ReviewFile(path)
    file.add(review("a"))
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="another process"):
            file.add(review("b"))
    assert file.labels() == {"a": "fine"}


def test_a_full_disk_keeps_nothing_of_a_review(path, monkeypatch):
    file = ReviewFile(path)
    file.add(review("a"))
    monkeypatch.setattr(reviews, "FILE_BYTES_MAX", path.stat().st_size + 1)
    with pytest.raises(Exception, match="full"):
        file.add(review("b"))
    assert len(path.read_bytes().splitlines()) == 1


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_only_a_regular_file_is_one(path, kind):
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    with pytest.raises(InputError, match="no regular file"):
        ReviewFile(path)


def test_a_missing_file_is_an_error_where_labels_are_needed(path):
    with pytest.raises(InputError, match="no such file"):
        ReviewFile(path, must_exist=True)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "trajectory_id"),
        ({"trajectory_id": "a", "label": "good"}, "label"),
        ({"trajectory_id": "a", "label": ["fine"]}, "label"),
        ({"trajectory_id": "a" * 301, "label": "fine"}, "trajectory_id"),
        ({"trajectory_id": "a", "label": "fine", "note": "x" * 2001}, "note"),
        ({"trajectory_id": "a", "label": "fine", "note": None}, "note"),
    ],
)
def test_a_request_that_is_no_review_names_the_field(given, field):
    with pytest.raises(InputError, match=field):
        made_review(given, "ada", 1.0)


def test_a_note_with_half_a_character_is_kept_on_one_line(path):
    file = ReviewFile(path)
    given = json.loads('{"trajectory_id": "a", "label": "fine", "note": "x\\ud800\\ny"}')
    with pytest.raises(InputError, match="note"):
        file.add(made_review(given, "ada", 1.0))
    file.add(review("a", note="\u2028\n\x00"))
    assert file.read()["a"].note == "\u2028\n\x00"
    assert path.read_bytes().count(b"\n") == 1


def line(name: str, label: str | None) -> str:
    return json.dumps({"trajectory_id": name, "label": label, "at": 1}) + "\n"


def test_a_file_that_somebody_has_edited_is_read_anew(tmp_path: Path) -> None:
    """Many editors write to the same file; the page must not show other labels than an export."""
    path = tmp_path / "reviews.jsonl"
    path.write_text(line("a", "fine") + line("b", "fine"))
    page = ReviewFile(path)
    for text in (
        line("a", "cheating") + line("b", "fine"),
        line("a", "cheating") + line("c", "broken_task") + line("d", "fine") + line("e", "fine"),
        line("e", "unsure"),
    ):
        with path.open("r+") as file:
            file.truncate()
            file.write(text)
        assert dict(page.read()) == dict(ReviewFile(path).read())


def test_a_last_line_that_goes_on_counts_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "reviews.jsonl"
    path.write_text(line("a", "fine") + line("a", "cheating")[:-1])
    page = ReviewFile(path)
    assert page.label_of("a") == "cheating"
    with path.open("a") as file:
        file.write(" and more\n" + line("b", "fine"))
    assert (page.labels(), page.damaged_lines) == ({"a": "fine", "b": "fine"}, 1)
    assert page.labels() == ReviewFile(path).labels()
