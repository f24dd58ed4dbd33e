"""The filter of system calls, run as the kernel runs it, for every machine it is written for."""

from __future__ import annotations

import errno
import struct

import pytest

from hermes_queue.sandbox.host.seccomp import (
    ABSENT,
    CLONE_PARENT,
    IGNORED,
    MACHINES,
    MEMORY_ADVICE,
    REFUSED,
    WITH_FLAGS,
    Machine,
    program,
)

ALLOWED = "allowed"
ORDINARY = {
    "x86_64": {"read": 0, "clone": 56, "ptrace": 101, "setns": 308, "seccomp": 317, "openat": 257},
    "aarch64": {"read": 63, "clone": 220, "ptrace": 117, "setns": 268, "seccomp": 277},
}
CLONE_THREAD, CLONE_NEWUSER = 0x3D0F00, 0x10000000
AF_PACKET, AF_ALG, AF_VSOCK = 17, 38, 40


def answer(
    machine: Machine, number: int, argument: int = 0, *, index: int = 0, architecture: int = 0
) -> object:
    """What the program says to one call: `ALLOWED` or an errno."""
    architecture = architecture or machine.architecture
    arguments = [argument if at == index else 0 for at in range(6)]
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments)
    code = list(struct.iter_unpack("=HBBI", program(machine)))
    at, word = 0, 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            [word] = struct.unpack_from("=I", data, value)
        elif operation == 0x06:  # BPF_RET
            kind, detail = value & 0xFFFF0000, value & 0xFFFF
            return ALLOWED if kind == 0x7FFF0000 else detail
        else:
            holds = {0x15: word == value, 0x35: word >= value, 0x45: bool(word & value)}[operation]
            at += if_true if holds else if_false


@pytest.fixture(params=MACHINES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_agents_have_no_use_for_is_refused(name):
    machine = MACHINES[name]
    for calls, expected in ((ABSENT, errno.ENOSYS), (REFUSED, errno.EPERM)):
        for numbers in calls.values():
            assert answer(machine, numbers[machine.column]) == expected


def test_ordinary_calls_and_debuggers_are_not(name):
    machine = MACHINES[name]
    assert {answer(machine, number) for number in ORDINARY[name].values()} == {ALLOWED}


def test_sockets_are_of_the_families_that_namespaces_divide(name):
    machine = MACHINES[name]
    for call in (machine.socket, machine.socketpair):
        assert [answer(machine, call, family) for family in (1, 2, 10, 16)] == [ALLOWED] * 4
        for family in (0, AF_PACKET, AF_ALG, AF_VSOCK):
            assert answer(machine, call, family) == errno.EAFNOSUPPORT


def test_threads_and_processes_may_begin_and_namespaces_may_not(name):
    machine = MACHINES[name]
    assert answer(machine, machine.clone, CLONE_THREAD) == ALLOWED
    for call in (machine.clone, machine.unshare):
        assert answer(machine, call, CLONE_NEWUSER | 17) == errno.EPERM
    assert answer(machine, machine.unshare, 0x400) == ALLOWED  # CLONE_FILES
    assert answer(machine, machine.clone, CLONE_PARENT | 17) == errno.EPERM


def test_nothing_tells_or_drops_what_the_host_keeps_of_files_in_memory(name):
    """Slots see the same files of the host: one could leave a message for the next."""
    machine = MACHINES[name]
    for numbers in IGNORED.values():
        for advice in range(6):
            assert answer(machine, numbers[machine.column], advice, index=3) == 0
    for numbers in WITH_FLAGS.values():
        number = numbers[machine.column]
        assert answer(machine, number, 0, index=5) == ALLOWED
        assert answer(machine, number, 8, index=5) == errno.EOPNOTSUPP  # RWF_NOWAIT
    for *numbers, index in MEMORY_ADVICE.values():
        number = numbers[machine.column]
        for advice in (20, 21):  # MADV_COLD, MADV_PAGEOUT
            assert answer(machine, number, advice, index=index) == errno.EINVAL
        for advice in (0, 3, 4, 8, 14):  # as allocators give it
            assert answer(machine, number, advice, index=index) == ALLOWED
    for call in ("mincore", "cachestat"):
        assert answer(machine, ABSENT[call][machine.column]) == errno.ENOSYS


def test_other_ways_into_the_kernel_do_not_pass_by_the_filter(name):
    machine = MACHINES[name]
    for architecture in (0x40000003, 0x40000028):  # i386, arm
        assert answer(machine, 0, architecture=architecture) == errno.ENOSYS
    if machine.has_x32:
        assert answer(machine, 0x40000000) == errno.ENOSYS
        assert answer(machine, 0x40000000 | machine.socket, 1) == errno.ENOSYS
