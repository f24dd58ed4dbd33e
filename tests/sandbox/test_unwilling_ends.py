"""Commands that run out of time and whose processes resist their end: it is a result all the same.

Were it a failure of the slot, an agent could have its job repeated instead of scored.
"""

from __future__ import annotations

import os

import pytest

ANY_BACKEND = ["local", "modal-slots-10" if os.geteuid() == 0 else "modal-slots-1"]

FIRST_THREAD_ENDS = """
import ctypes, os, threading, time
def beat():
    while True:
        open("beats", "a").write("x")
        time.sleep(0.02)
threading.Thread(target=beat).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)  # exit
"""
HOLDER = """
import ctypes, os, sys, threading, time
how = sys.argv[1]
while not os.path.exists("victim"):
    time.sleep(0.02)
victim = int(open("victim").read())
def hold():
    threads = sorted(map(int, os.listdir(f"/proc/{victim}/task")))
    target = threads[-1] if how == "another thread" else victim
    options = 0x40 if how == "before its end" else 0  # PTRACE_O_TRACEEXIT
    assert ctypes.CDLL(None).ptrace(0x4206, target, 0, options) == 0  # PTRACE_SEIZE
    open("held", "w").close()
    time.sleep(4242)
threading.Thread(target=hold).start() if how == "by a thread" else hold()
"""
VICTIM = """
import ctypes, os, threading, time
ctypes.CDLL(None).prctl(0x59616d61, -1, 0, 0, 0)  # PR_SET_PTRACER, to any process
threading.Thread(target=time.sleep, args=(4242,)).start()
open("number", "w").write(str(os.getpid()))
os.rename("number", "victim")
while not os.path.exists("held"):
    time.sleep(0.02)
os._exit(0)
"""


HOLDS = [
    *(("local", how) for how in ("by a thread", "another thread", "before its end")),
    (ANY_BACKEND[1], "another thread"),
    *(
        pytest.param(ANY_BACKEND[1], how, marks=pytest.mark.exhaustive)
        for how in ("by a thread", "before its end")
    ),
]


@pytest.fixture
async def bench(make_bench, request):
    return await make_bench(request.param, slots=1)


async def put(bench, slot, name: str, text: str) -> None:
    await bench.backend.write_file(slot, f"{slot.workspace}/{name}", text.encode())


@pytest.mark.parametrize("bench", ANY_BACKEND, indirect=True)
async def test_threads_that_outlive_the_first_one_are_killed(bench):
    slot = await bench.slot()
    await put(bench, slot, "threads", FIRST_THREAD_ENDS)
    assert (await bench.sh(slot, "exec python3 threads", timeout_s=1)).timed_out
    sizes = [await bench.out(slot, "wc -c <beats; sleep 0.1") for _ in range(2)]
    assert sizes[0] == sizes[1] != "0"


@pytest.mark.fleet
@pytest.mark.parametrize(("bench", "how"), HOLDS, indirect=["bench"])
async def test_a_tracer_cannot_keep_a_command(bench, how):
    slot = await bench.slot()
    await put(bench, slot, "holder", HOLDER)
    await put(bench, slot, "victim_", VICTIM)
    await bench.out(slot, f"python3 holder '{how}' >/dev/null 2>&1 &")
    result = await bench.sh(slot, "exec python3 victim_", timeout_s=2)
    assert result.timed_out
    assert await bench.out(slot, "test -e held && echo alive") == "alive"
