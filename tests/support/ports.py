"""Ports of loopback for servers that must know theirs before they start."""

from __future__ import annotations

import os
import random
import socket

_FIRST, _END = 20_000, 32_000
"""Below the range of ephemeral ports (on Linux from 32768 on): no connection is given one of these
before the server has come."""
_given: set[int] = set()


def free_port() -> int:
    """A free port that this process has not returned before."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of `count` consecutive free ports."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = (_END - _FIRST) // workers  # so that no two of them find the same one free
    begin = _FIRST + number * share
    for _ in range(1000):
        first = random.randrange(begin, begin + share - count)
        ports = range(first, first + count)
        if _given.isdisjoint(ports) and all(map(_is_free, ports)):
            _given.update(ports)
            return first
    raise AssertionError(f"no {count} free ports in a row")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
