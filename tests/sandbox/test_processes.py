"""Killing trees of processes of this host."""

from __future__ import annotations

import os
import secrets
import subprocess

from hermes_queue.sandbox.host.processes import (
    COMMAND_VARIABLE,
    is_running,
    kill_tree,
    kill_trees,
    read_stat,
)

TREE = "for n in 1 2 3 4 5 6 7 8; do setsid sleep 600 & echo $!; done; wait"


def test_what_was_killed_is_gone_at_once():
    for _ in range(10):
        marker = secrets.token_hex(8)
        with subprocess.Popen(
            ["bash", "-c", TREE],
            env={**os.environ, COMMAND_VARIABLE: marker},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            pids = [int(process.stdout.readline()) for _ in range(8)]
            began = {pid: stat.started for pid in pids if (stat := read_stat(pid))}
            assert len(began) == 8
            assert kill_tree(marker, process.pid)
            assert [pid for pid in began if is_running(pid, began[pid])] == []


def marked(mark: str) -> subprocess.Popen[bytes]:
    command = ["setsid", "--wait", "sleep", "4242"]
    return subprocess.Popen(command, env={**os.environ, COMMAND_VARIABLE: mark})


def test_several_trees_are_killed_at_once_and_nothing_with_a_similar_mark():
    slot, other = secrets.token_hex(8), secrets.token_hex(8)
    with marked(f"{slot}.1") as first, marked(f"{slot}.12") as second, marked(other) as third:
        with marked(f"{slot}x") as alike, marked(slot[:-1]) as shorter:
            assert kill_trees([(slot, None), (f"{other}.1", None), (other, None)])
            assert [each.wait() for each in (first, second, third)] == [-9, -9, -9]
            assert alike.poll() is shorter.poll() is None
            assert kill_trees([(None, alike.pid), (None, shorter.pid)])
