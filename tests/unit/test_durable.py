"""Files that others wrote are made durable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hermes_queue.disk.durable import sync_tree


def test_all_files_below_a_directory_and_their_names_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "checkpoint-2"
    (checkpoint / "inner").mkdir(parents=True)
    for name in ("model", "inner/state"):
        (checkpoint / name).write_text("weights")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    sync_tree(checkpoint)
    found = [checkpoint, *checkpoint.rglob("*"), tmp_path]
    assert sorted(synced) == sorted(str(path) for path in found)


def test_a_directory_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    sync_tree(tmp_path / "missing")
