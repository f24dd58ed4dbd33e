"""The journal of a trainer's steps survives kills and power losses, and belongs to one process."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.trainers.journal import FILE_NAME, StepJournal


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the journal of a test is."""
    return tmp_path / FILE_NAME


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[StepJournal]:
    made = StepJournal(tmp_path)
    made.add(1, ["a", "b"])
    made.add(2, ["c"])
    made.add(4, ["d"])
    yield made
    made.close()


def reopened(journal: StepJournal) -> StepJournal:
    journal.close()
    return StepJournal(journal.path.parent)


def test_a_line_is_json_with_the_step_and_its_groups(journal, file):
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == [
        {"step": 1, "groups": ["a", "b"]},
        {"step": 2, "groups": ["c"]},
        {"step": 4, "groups": ["d"]},
    ]


def test_another_process_finds_every_group_with_its_step(journal):
    again = reopened(journal)
    assert (dict(again.steps), again.last_step) == ({"a": 1, "b": 1, "c": 2, "d": 4}, 4)
    again.close()


@pytest.mark.parametrize(("step", "left"), [(9, "abcd"), (3, "abc"), (1, "ab"), (0, "")])
def test_resuming_cuts_off_the_steps_whose_weights_are_lost(journal, step, left):
    assert journal.resume(step) == len(left)
    assert [*journal.steps] == [*left]
    again = reopened(journal)
    assert [*again.steps] == [*left]
    again.add(step + 1, ["new"])
    assert again.steps["new"] == step + 1
    again.close()


@pytest.mark.parametrize(
    "tail", [b'{"step": 5, "gro', b"{", b'{"step": 5, "groups": ["e"]}', b"\0" * 40, b'{"st\0\0\n']
)
def test_a_torn_last_line_is_cut_off(journal, file, tail):
    whole = file.read_bytes()
    file.write_bytes(whole + tail)
    again = reopened(journal)
    assert again.last_step == 4
    assert file.read_bytes() == whole
    again.add(5, ["e"])
    again.close()


@pytest.mark.parametrize("length", range(0, 70, 7))
def test_whatever_part_of_a_journal_is_left_can_be_read(journal, file, length):
    journal.close()
    whole = file.read_bytes()[:length]
    file.write_bytes(whole)
    again = StepJournal(file.parent)
    lines = whole.count(b"\n")
    assert [*again.steps] == [*("", "ab", "abc", "abcd")[lines]]
    again.close()


@pytest.mark.parametrize(
    "content",
    [
        b"notes of mine",
        b"\x80\x04binary\0\0",
        b"{}\n",
        b'{"step": 1, "groups": ["a"], "more": 1}\n',
        b'{"step": -1, "groups": []}\n',
        b'{"step": true, "groups": []}\n',
        b'{"step": 1, "groups": [1]}\n',
        b'{"step": 1, "groups": ["a", "a"]}\n',
        b'{"step": 1, "groups": "a"}\n',
        b'{"step": 2, "groups": ["a"]}\n{"step": 1, "groups": ["b"]}\n',
        b'{"step": 1, "groups": ["a"]}\n{"step": 2, "groups": ["a"]}\n',
        b'{"step": 1, "groups": ["a"]}\n{"step": 2, "gr\n{"step": 3, "groups": ["b"]}\n',
        b'{"step": 1, "groups": ["a"]}\n{"step": 2, "gr\n',
        b'{"step": ' + b"[" * 100_000 + b"\n",
    ],
)
def test_a_foreign_or_damaged_file_is_refused_and_stays_as_it_was(tmp_path, file, content):
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match="stays unchanged"):
        StepJournal(tmp_path)
    assert file.read_bytes() == content


def test_a_second_process_cannot_open_it(journal, tmp_path):
    with pytest.raises(ConfigurationError, match="another process is writing to it"):
        StepJournal(tmp_path)


def test_a_step_that_goes_back_or_a_group_that_comes_twice_is_refused(journal, file):
    whole = file.read_bytes()
    for step, groups, why in [
        (3, ["e"], r"call resume\(\)"),
        (5, ["a"], "was trained in step 1"),
        (5, ["e", "e"], "a group twice"),
    ]:
        with pytest.raises(ValueError, match=why):
            journal.add(step, groups)
    assert file.read_bytes() == whole


def test_a_disk_that_fails_leaves_the_journal_as_it_was(journal, file, monkeypatch):
    whole = file.read_bytes()

    def fails(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(HermesQueueError, match="No space left"):
            journal.add(5, ["e"])
    assert (file.read_bytes(), journal.last_step, "e" in journal.steps) == (whole, 4, False)
    journal.add(5, ["e"])
    assert journal.steps["e"] == 5


def test_the_directory_is_made(tmp_path):
    StepJournal(tmp_path / "run" / "checkpoints").close()
    assert (tmp_path / "run" / "checkpoints" / FILE_NAME).exists()


def test_a_call_that_is_broken_off_leaves_no_line_for_the_next_one(journal, monkeypatch):
    def interrupted(fd: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.add(5, ["e"])
    journal.add(5, ["e"])
    again = reopened(journal)
    assert (again.steps["e"], again.last_step) == (5, 5)
    again.close()


def test_a_child_does_not_hold_the_journal_of_its_parent(journal):
    ready, begun = os.pipe()
    end, ended = os.pipe()
    if (child := os.fork()) == 0:
        os.write(begun, b".")
        os.close(ended)
        os.read(end, 1)
        os._exit(0)
    os.read(ready, 1)
    try:
        reopened(journal).close()
    finally:
        for fd in (ready, begun, end, ended):
            os.close(fd)
        os.waitpid(child, 0)
