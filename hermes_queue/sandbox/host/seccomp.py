"""A system-call filter for commands of slots, and the thread that starts them under it.

Namespaces and missing capabilities close most doors. The filter closes those that remain: parts
of the kernel that namespaces do not divide (keys, which all processes of a uid on the host
share; AF_VSOCK, which reaches the hypervisor; the page cache of host files that slots see), and
large ones that agents do not need. It is a list of refused calls; debuggers, container tools and
everything ordinary keep working.

Commands enter a slot from outside, so bubblewrap cannot filter them. Filters belong to threads
and are inherited: the thread that starts commands has one, the worker's other threads have none.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import platform
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

PR_SET_NO_NEW_PRIVS = 38
SET_MODE_FILTER, FLAG_SPEC_ALLOW = 1, 4
"""See seccomp(2). Without the flag, older kernels slow the command down to mitigate Spectre v4."""
LOAD, JUMP_EQUAL, JUMP_GREATER_OR_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of classic BPF on a 32-bit word, see linux/bpf_common.h."""
NUMBER_AT, ARCHITECTURE_AT = 0, 4
"""Offsets in `struct seccomp_data`."""
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
X32_BIT = 0x40000000
NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
CLONE_PARENT = 0x8000
"""The new process is a sibling: a command could make children of the process that started it, which
is outside of the slot."""
SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK, which name resolution asks for addresses."""

IGNORED = {"fadvise64": (221, 223), "readahead": (187, 213)}
"""Numbers on x86-64 and AArch64. Advice about the page cache, which all slots share: it is ignored
but reported as successful, so that nothing fails."""
ABSENT = {
    "mincore": (27, 232),
    "cachestat": (451, 451),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "clone3": (435, 435),
}
"""Numbers as above. Answered with ENOSYS, as by a kernel without them, so that libraries use
another way. The flags of clone3 are in memory, where no filter sees them."""
REFUSED = {
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
}
"""Numbers as above; answered with EPERM."""
WITH_FLAGS = {"preadv2": (327, 286), "pwritev2": (328, 287)}
"""Numbers as above; EOPNOTSUPP if the sixth argument is not 0: RWF_NOWAIT reveals what is
cached."""
MEMORY_ADVICE = {"madvise": (28, 233, 2), "process_madvise": (440, 440, 3)}
"""Numbers, and the index of the argument with the advice."""
MADV_COLD, MADV_PAGEOUT = 20, 21
"""Advice that drops cached pages, which all slots share; answered with EINVAL, as by older
kernels."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Differences between processors."""

    architecture: int
    """AUDIT_ARCH_*, see linux/audit.h."""
    column: int
    """Column of the tables above."""
    seccomp: int
    socket: int
    socketpair: int
    clone: int
    unshare: int
    has_x32: bool


MACHINES = {
    "x86_64": Machine(0xC000003E, 0, 317, 41, 53, 56, 272, has_x32=True),
    "aarch64": Machine(0xC00000B7, 1, 277, 198, 199, 220, 97, has_x32=False),
}


class _Code:
    """Instructions of a filter; every rule ends it or leaves the call's number loaded."""

    def __init__(self) -> None:
        self._instructions: list[tuple[int, int, int, int]] = []

    def load(self, offset: int) -> None:
        """Load the 32-bit word at this offset of `struct seccomp_data`."""
        self._instructions.append((LOAD, 0, 0, offset))

    def answer_if(self, jump: int, value: int, action: int, *, unless: bool = False) -> None:
        """End with `action` if the comparison of the loaded word with `value` holds."""
        self._instructions.append((jump, int(unless), int(not unless), value))
        self.answer(action)

    def answer(self, action: int) -> None:
        """End with `action`."""
        self._instructions.append((RETURN, 0, 0, action))

    def answer_by_argument(
        self, call: int, index: int, jump: int, values: Sequence[int], then: int, otherwise: int
    ) -> None:
        """For this call, end with `then` if its argument matches a value, else with `otherwise`."""
        self._instructions.append((JUMP_EQUAL, 0, len(values) + 3, call))
        self.load(16 + 8 * index)  # the argument's lower half on little-endian machines
        for at, value in enumerate(values):
            self._instructions.append((jump, len(values) - at, 0, value))
        self.answer(otherwise)
        self.answer(then)

    def __bytes__(self) -> bytes:
        return b"".join(struct.pack("=HBBI", *each) for each in self._instructions)


def program(machine: Machine) -> bytes:
    """The filter in the kernel's format: an array of `struct sock_filter`."""
    code = _Code()
    code.load(ARCHITECTURE_AT)
    code.answer_if(JUMP_EQUAL, machine.architecture, ERRNO | errno.ENOSYS, unless=True)
    code.load(NUMBER_AT)
    if machine.has_x32:
        code.answer_if(JUMP_GREATER_OR_EQUAL, X32_BIT, ERRNO | errno.ENOSYS)
    for calls, number in ((IGNORED, 0), (ABSENT, errno.ENOSYS), (REFUSED, errno.EPERM)):
        for numbers in calls.values():
            code.answer_if(JUMP_EQUAL, numbers[machine.column], ERRNO | number)
    # Not setns: entering the slot needs it, and it requires rights that commands do not have.
    for call in (machine.clone, machine.unshare):
        refused = ERRNO | errno.EPERM
        code.answer_by_argument(
            call, 0, JUMP_ANY_BIT, (NEW_NAMESPACES | CLONE_PARENT,), refused, ALLOW
        )
    for call in (machine.socket, machine.socketpair):
        refused = ERRNO | errno.EAFNOSUPPORT
        code.answer_by_argument(call, 0, JUMP_EQUAL, SOCKET_FAMILIES, ALLOW, refused)
    for numbers in WITH_FLAGS.values():
        refused = ERRNO | errno.EOPNOTSUPP
        code.answer_by_argument(numbers[machine.column], 5, JUMP_EQUAL, (0,), ALLOW, refused)
    for *advised, index in MEMORY_ADVICE.values():
        refused = ERRNO | errno.EINVAL
        advice = (MADV_COLD, MADV_PAGEOUT)
        code.answer_by_argument(advised[machine.column], index, JUMP_EQUAL, advice, refused, ALLOW)
    code.answer(ALLOW)
    return bytes(code)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def confine_thread() -> None:
    """Put this thread, and every process it starts, under the filter, unable to gain rights.

    Raises:
        OSError: the kernel or the machine has no such filters; no_new_privs may be set anyway.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs is refused")
    machine = MACHINES.get(platform.machine())
    if machine is None:
        raise OSError(errno.ENOSYS, f"no filter is written for {platform.machine()}")
    instructions = program(machine)
    given = _Program(len(instructions) // 8, instructions)
    for flags in (FLAG_SPEC_ALLOW, 0):
        words = [ctypes.c_long(word) for word in (machine.seccomp, SET_MODE_FILTER, flags)]
        if libc.syscall(*words, ctypes.byref(given)) == 0:
            return
    raise OSError(ctypes.get_errno(), "seccomp filters are refused")


def unsupported() -> str:
    """Why commands cannot be filtered here; empty if they can. Blocking."""
    with ThreadPoolExecutor(1, "seccomp-probe") as probe:
        return str(probe.submit(confine_thread).exception() or "")


def call_confined(function: Callable[[], T]) -> T:
    """Call `function` in a thread of this process that is under the filter. Blocking."""
    return _thread(os.getpid()).submit(function).result()


@functools.cache
def _thread(_process: int) -> ThreadPoolExecutor:
    """One per process: a forked child has none of its parent's threads."""
    return ThreadPoolExecutor(1, "confined", initializer=_confine)


def _confine() -> None:
    with contextlib.suppress(OSError):  # Backends warn about this when they start.
        confine_thread()
