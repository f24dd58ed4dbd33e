"""The user behind a connection of the loopback interface.

Where several slots share that interface, this keeps everybody but the slot's own user out. The
program that is sent into remote sandboxes contains this module's text: it imports nothing of ours
and runs on Python 3.7.
"""

from __future__ import annotations

import socket
import struct

TABLES = (("/proc/net/tcp", False), ("/proc/net/tcp6", True))
"""Lists of connections, and whether they have IPv4 addresses in the form of IPv6."""
LOCAL, REMOTE, UID = 1, 2, 7
"""Columns."""


def owner_of(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Uid of the socket at `peer` that is connected to `own`; None if there is none any more.

    Both are IPv4 addresses in this process's network namespace. Reads the list of all its
    connections. A socket that its process has closed has no owner, or seems to be root's.
    """
    for table, mapped in TABLES:
        wanted = [_shown(peer, mapped=mapped), _shown(own, mapped=mapped)]
        try:
            with open(table, encoding="ascii", errors="replace") as lines:
                for line in lines:
                    words = line.split(None, UID + 1)
                    if len(words) > UID and [words[LOCAL], words[REMOTE]] == wanted:
                        return int(words[UID])
        except (OSError, ValueError):
            continue
    return None


def _shown(address: tuple[str, int], *, mapped: bool) -> str:
    """The address as in the table."""
    packed = socket.inet_aton(address[0])
    if mapped:
        packed = bytes(10) + b"\xff\xff" + packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"
