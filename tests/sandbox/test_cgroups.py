"""Control groups go with their slots."""

from __future__ import annotations

import threading
from pathlib import Path

from hermes_queue.sandbox.host.cgroups import remove_groups


def test_a_group_whose_processes_take_seconds_to_die_is_deleted_all_the_same(
    tmp_path: Path,
) -> None:
    groups = tuple(tmp_path / name for name in ("memory", "pids"))
    for group in groups:
        group.mkdir()
    dying = groups[0] / "process"  # like a group, a directory that holds something cannot go
    dying.touch()
    death = threading.Timer(1.5, dying.unlink)
    death.start()
    remove_groups(groups)
    death.join()
    assert not any(group.exists() for group in groups)
