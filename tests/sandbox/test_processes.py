"""Killing trees of processes of this host."""

from __future__ import annotations

import os
import secrets
import subprocess

from hermes_queue.sandbox.host.processes import COMMAND_VARIABLE, is_running, kill_tree, read_stat

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
