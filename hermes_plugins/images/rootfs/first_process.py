"""The program of the first process of a slot with an image: machine code without any library.

An image's own programs will not do: they may be an agent's work when a slot is restarted, and
those of the host do not find their libraries in the image. It has the kernel reap orphans (ignores
SIGCHLD), writes a byte to its stdout, reads one from its stdin (and ends if none comes), and then
waits for ever.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from pathlib import Path

from hermes_queue.sandbox.host.paths import is_root

_BASE = 0x400000
_FILE_HEADER, _PROGRAM_HEADER = 64, 56
_IGNORE = struct.pack("<4Q", 1, 0, 0, 0)
"""`struct sigaction` of the kernel with SIG_IGN."""
MACHINES = {
    "x86_64": (
        62,
        "b80d000000"  # mov eax, 13: rt_sigaction(
        "bf11000000"  # mov edi, 17: SIGCHLD,
        "488d353f000000"  # lea rsi, [_IGNORE],
        "31d2"  # xor edx, edx: NULL,
        "41ba08000000"  # mov r10d, 8)
        "0f05"  # syscall
        "b801000000"  # mov eax, 1: write(
        "bf01000000"  # mov edi, 1,
        "4889e6"  # mov rsi, rsp,
        "ba01000000"  # mov edx, 1)
        "0f05"  # syscall
        "31c0"  # xor eax, eax: read(
        "31ff"  # xor edi, edi, rsp, 1)
        "0f05"  # syscall
        "83f801"  # cmp eax, 1
        "7509"  # jne exit
        "b822000000"  # wait: mov eax, 34: pause()
        "0f05"  # syscall
        "ebf7"  # jmp wait
        "b83c000000"  # exit: mov eax, 60: exit(
        "bf01000000"  # mov edi, 1)
        "0f05"  # syscall
        "90",
    ),
    "aarch64": (
        183,
        "200280d2"  # mov x0, 17: SIGCHLD
        "61030010"  # adr x1, _IGNORE
        "020080d2"  # mov x2, 0
        "030180d2"  # mov x3, 8
        "c81080d2"  # mov x8, 134: rt_sigaction
        "010000d4"  # svc 0
        "200080d2"  # mov x0, 1
        "e1030091"  # mov x1, sp
        "220080d2"  # mov x2, 1
        "080880d2"  # mov x8, 64: write
        "010000d4"  # svc 0
        "000080d2"  # mov x0, 0
        "e1030091"  # mov x1, sp
        "220080d2"  # mov x2, 1
        "e80780d2"  # mov x8, 63: read
        "010000d4"  # svc 0
        "1f0400f1"  # cmp x0, 1
        "01010054"  # b.ne exit
        "000080d2"  # wait: mov x0, 0
        "010080d2"  # mov x1, 0
        "020080d2"  # mov x2, 0
        "030080d2"  # mov x3, 0
        "280980d2"  # mov x8, 73: ppoll, which waits for nothing
        "010000d4"  # svc 0
        "faffff17"  # b wait
        "200080d2"  # exit: mov x0, 1
        "a80b80d2"  # mov x8, 93: exit
        "010000d4",  # svc 0
    ),
}
"""By `platform.machine()`: its number in ELF headers, and the code, which `_IGNORE` follows."""


def program(machine: str) -> bytes:
    """The file of the program. Raises OSError: it is not written for this processor."""
    if machine not in MACHINES:
        why = "slots with an image need x86_64 or aarch64"
        raise OSError(errno.ENOEXEC, why, machine)
    number, code = MACHINES[machine]
    body = bytes.fromhex(code) + _IGNORE
    header = _FILE_HEADER + _PROGRAM_HEADER
    start = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    start += struct.pack(
        "<HHIQQQIHHHHHH", 2, number, 1, _BASE + header, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    size = header + len(body)
    readable_and_executable = 5
    segment = (1, readable_and_executable, 0, _BASE, _BASE, size, size, 0x10000)
    return start + struct.pack("<IIQQQQQQ", *segment) + body


def place_first_process(path: Path, owner: int) -> None:
    """Store the program at `path`, for `owner` if we are root, unreadable. Blocking.

    The kernel makes a process whose program it may not read undumpable: nothing inside can trace
    it. Raises OSError.
    """
    path.write_bytes(program(platform.machine()))
    if is_root():
        os.chown(path, owner, owner)
    path.chmod(0o111)
