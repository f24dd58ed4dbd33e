"""What a hostile command may not do to its slot, its neighbours and its host, as root's worker and
as anybody else's (test_ordinary_user.py)."""

from __future__ import annotations

import asyncio
import os
import secrets
import textwrap
from pathlib import Path

import pytest

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.base import AssetSpec, SlotSpec
from hermes_queue.sandbox.host import processes, seccomp
from hermes_queue.sandbox.host.paths import SLOT_UID

pytestmark = pytest.mark.rights

LIBC = "import ctypes, os, struct, sys, time; libc = ctypes.CDLL(None, use_errno=True)\n"
BUFFER = (
    LIBC
    + "text = ctypes.create_string_buffer(8); v = struct.pack('PN', ctypes.addressof(text), 8)\n"
)


def python(text: str, head: str = LIBC) -> str:
    return "python3 - <<'END'\n" + head + textwrap.dedent(text) + "\nEND"


ORPHANS = "for i in $(seq 300); do (sh -c 'exit 0' &); done"
INIT_MEETS = {
    "a line on its input": "echo bye > /proc/1/fd/0",
    "all signals": "for s in $(seq 64); do kill -$s 1; kill -$s -1; done",
    "a stop": "kill -STOP 1; kill -TSTP 1; kill -9 1",
    "the end of a process group": "(setsid sleep 4242 &); kill -9 0",
    "a tracer": python("""
        for request in (16, 0x4206):  # PTRACE_ATTACH, PTRACE_SEIZE
            assert libc.ptrace(request, 1, 0, 0) == -1
        libc.ptrace(8, 1, 0, 0)  # PTRACE_KILL
    """),
    "a write to its memory": python("""
        for name in ("mem", "clear_refs", "oom_score_adj", "coredump_filter"):
            try:
                print(name, os.write(os.open(f"/proc/1/{name}", os.O_WRONLY), b"1000"))
            except OSError:
                pass
        assert libc.process_vm_writev(1, v, 1, v, 1, 0) == -1
    """, BUFFER),
    "the loss of a descriptor": python("""
        pidfd = os.pidfd_open(1)
        assert libc.syscall(438, pidfd, 0, 0) == -1  # pidfd_getfd
        libc.syscall(424, pidfd, 9, 0, 0)  # pidfd_send_signal
    """),
    "limits": "for l in cpu data as nofile stack rss; do prlimit --pid 1 --$l=1; done; " + ORPHANS,
    "the last place in line": "renice 19 1; chrt -i -p 0 1; taskset -p 1 1; " + ORPHANS,
    "all memory": "dd if=/dev/zero of=/dev/shm/x bs=1M count=600; "
    "python3 -c 'bytearray(600 << 20)'",
    "closed descriptors": "exec 0<&- 1>&- 2>&-; for n in $(seq 3 20); do eval \"exec $n<&-\"; done",
    "a fork bomb": "timeout 1 bash -c 'b() { b & b & }; b'",
}  # fmt: skip


@pytest.fixture
async def local(make_bench):
    return await make_bench("local", slots=2)


async def test_nothing_that_commands_do_ends_their_slot(local):
    slot, ended = await local.slot(), []
    for name, command in INIT_MEETS.items():
        answer = await local.answer(slot, f"exec 2>/dev/null\n{command}\nexit 0")
        after = await local.answer(slot, "pkill -9 -u 1000; echo alive")
        if isinstance(answer, SandboxError) or isinstance(after, SandboxError):
            ended.append(name)
            await local.backend.release(slot)
            slot = await local.slot()
    assert ended == []


async def test_a_command_that_forks_too_fast_to_be_caught_loses_what_runs_and_not_the_slot(
    local, monkeypatch
):
    monkeypatch.setattr(processes, "MAX_ROUNDS", 0)
    slot = await local.slot()
    command = "touch begun; (trap '' TERM HUP; setsid sleep 4242 &); sleep 4242"
    result = await local.sh(slot, command, timeout_s=1)
    assert result.timed_out
    while await local.out(slot, "ls; pgrep -fc '[s]leep 4242' || true") != "begun\n0":
        await asyncio.sleep(0.05)


async def test_commands_inherit_their_streams_and_nothing_else(local):
    slot = await local.slot()
    seen = await local.out(slot, "ls -l /proc/self/fd | grep -o '[0-9]* -> .*'")
    assert [line.split()[0] for line in seen.splitlines()] == ["0", "1", "2", "3"]
    assert seen.splitlines()[3].endswith("/fd")  # the listing's own


async def test_commands_have_no_capabilities_and_cannot_gain_any(local):
    slot = await local.slot()
    status = await local.out(slot, "cat /proc/self/status")
    held = [line.split() for line in status.splitlines() if line.startswith("Cap")]
    assert {value for name, value in held if name != "CapBnd:"} == {"0" * 16}
    assert "NoNewPrivs:\t1" in status


async def test_a_debugger_may_trace_processes_of_its_own_slot(local):
    slot = await local.slot()
    traces = """
        child = os.fork()
        if child == 0:
            time.sleep(100)
        assert libc.ptrace(16, child, 0, 0) == 0
        os.waitpid(child, 0)
        os.kill(child, 9)
        print("traced")
    """
    assert await local.out(slot, python(traces)) == "traced"


@pytest.mark.skipif(bool(seccomp.unsupported()), reason="this kernel has no seccomp filters")
async def test_commands_do_not_reach_what_slots_share_in_the_kernel(local):
    slot = await local.slot()
    tries = """
        import errno, socket
        numbers = {"x86_64": (248, 321, 298, 425), "aarch64": (217, 280, 241, 425)}
        for number in numbers[os.uname().machine]:  # add_key, bpf, perf_event_open, io_uring_setup
            libc.syscall(number, 0, 0, 0, 0, 0)
            print(errno.errorcode[ctypes.get_errno()])
        for family in (socket.AF_VSOCK, socket.AF_ALG, socket.AF_PACKET):
            try:
                socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                print(errno.errorcode[error.errno])
    """
    refused = ["ENOSYS", "EPERM", "EPERM", "ENOSYS", *["EAFNOSUPPORT"] * 3]
    assert (await local.out(slot, python(tries))).splitlines() == refused


async def test_the_worker_itself_is_under_no_filter(local):
    slot = await local.slot()
    await local.out(slot, "true")
    filters = [
        line
        for task in Path("/proc/self/task").iterdir()
        for line in (task / "status").read_text().splitlines()
        if line.startswith("Seccomp_filters:")
    ]
    assert filters.count(min(filters)) == len(filters) - 1  # but for the one that starts commands


async def test_ordinary_software_works_behind_the_fence(local):
    slot = await local.slot()
    work = """
        import asyncio, socket, threading
        async def main():
            server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
            await asyncio.open_connection(*server.sockets[0].getsockname())
            child = await asyncio.create_subprocess_exec("true")
            assert await child.wait() == 0
        asyncio.run(main())
        socket.socketpair()
        socket.getaddrinfo("localhost", 80)
        thread = threading.Thread(target=print, args=["done"])
        thread.start()
        thread.join()
    """
    assert await local.out(slot, python(work)) == "done"
    await local.out(
        slot, "git init -q . && git -c user.name=a -c user.email=b commit -qm c --allow-empty"
    )


NEIGHBOURS = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give slots a uid each")
TAKES_ALL = """
    held = [os.pipe() for _ in range(6000)]
    while libc.inotify_init1(0) >= 0:
        pass
    print("taken", flush=True)
    time.sleep(600)
"""
WHAT_IS_LEFT = """
    import fcntl
    print(fcntl.fcntl(os.pipe()[1], 1032), libc.inotify_init1(0) >= 0)  # F_GETPIPE_SZ
"""


@NEIGHBOURS
async def test_a_slot_cannot_use_up_pipes_and_watches_of_its_neighbours(local):
    hog, neighbour = await local.slot(), await local.slot()
    (await local.sh(hog, f"ulimit -n 20000; {{ {python(TAKES_ALL)}\n}} >taken &"))
    while not (await local.sh(hog, "grep taken taken")).ok:
        await asyncio.sleep(0.05)
    assert await local.out(neighbour, python(WHAT_IS_LEFT)) == "65536 True"


@NEIGHBOURS
async def test_each_slot_has_a_uid_that_no_other_and_no_dead_one_has(local, cache):
    slots = [await local.slot(), await local.slot()]
    uids = set()
    for slot in slots:
        await local.out(slot, "touch made")
        place = cache / "slots" / slot.sandbox_id / slot.slot_id
        status = Path(f"/proc/{local.backend._slots[slot.slot_id].fence.init_pid}/status")
        [ids] = [line for line in status.read_text().splitlines() if line.startswith("Uid:")]
        uids |= {int(ids.split()[1]), (place / "workspace" / "made").stat().st_uid}
    again = await local.backend.renew(slots[0])
    uids.add((cache / "slots" / again.sandbox_id / again.slot_id).stat().st_uid)
    assert len(uids) == 3
    assert SLOT_UID not in uids
    assert await local.out(again, "ls; touch made; stat -c %U made") == "agent"


async def test_assets_are_open_to_slots_whatever_modes_they_were_built_with(local):
    closed = "umask 077; mkdir d; echo inside >d/file; echo 'echo ran' >d/run; chmod 700 d/run"
    asset = AssetSpec("closed", secrets.token_hex(8), closed, "/opt/assets/closed")
    slot = await local.slot(SlotSpec(assets=(asset,)))
    command = "cat /opt/assets/closed/d/file; /opt/assets/closed/d/run"
    assert await local.out(slot, command) == "inside\nran"


HOLD = """
import fcntl, os, signal, sys
held = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
for each in held:
    fcntl.flock(each, fcntl.LOCK_EX)
if os.fork() == 0:
    for stream in range(3):
        os.close(stream)
    signal.pause()
"""
TRY = """
import fcntl, os, sys
for path in sys.argv[1:]:
    try:
        fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(path)
"""
SEEN_BY_ALL = (
    "/usr /usr/bin/env /bin /etc/passwd /etc/ld.so.cache /etc/ssl /opt/python /opt/assets/a/f"
)


async def test_a_lock_on_a_file_that_slots_only_read_does_not_reach_another_slot(local):
    spec = SlotSpec(assets=(AssetSpec("test", "ab" * 16, "echo 1 >f", "/opt/assets/a"),))
    await local.backend.prepare(spec)
    holder, other = [await local.backend.acquire(name, spec) for name in ("a", "b")]
    stays = await local.out(holder, f"python3 -c '{HOLD}' {SEEN_BY_ALL}; python3 -c '{TRY}' /usr")
    assert stays == "/usr", "the lock is held in its own slot"
    assert await local.out(other, f"python3 -c '{TRY}' {SEEN_BY_ALL}") == ""


async def test_an_event_on_a_file_that_slots_only_read_does_not_reach_another_slot(local):
    watcher, other = await local.slot(), await local.slot()
    watch = """
        import select
        watched = libc.inotify_init()
        assert libc.inotify_add_watch(watched, b"/usr/lib/os-release", 0x20) > 0  # IN_OPEN
        open("watching", "w").close()
        while not os.path.exists("opened"):
            time.sleep(0.01)
        print(len(select.select([watched], [], [], 0)[0]))
        open("/usr/lib/os-release").close()
        print(len(select.select([watched], [], [], 10)[0]))
    """
    seen = asyncio.create_task(local.out(watcher, python(watch)))
    while await local.out(watcher, "ls watching 2>/dev/null || true") == "":
        await asyncio.sleep(0.01)
    await local.out(other, "cat /usr/lib/os-release")
    await local.out(watcher, "touch opened")
    assert (await seen).split() == ["0", "1"]
