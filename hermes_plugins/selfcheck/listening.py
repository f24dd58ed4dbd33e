"""Checks of ports inside slots that the worker serves."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from hermes_plugins.selfcheck.bench import CheckFailed, Trial, check, expect, raising, same
from hermes_queue.errors import SandboxError, SlotLost
from hermes_queue.sandbox.base import LOOPBACK, MAX_CONNECTIONS, Listening, Slot

ANSWER_S = 20.0
MOST_HELD_BYTES = 24 << 20
"""What buffers of kernels and backends may hold of a stream that nobody reads."""
BULK_BYTES = 10 << 20
IN_A_ROW = 200
SURPLUS = 6
"""Connections beyond the limit."""
HEAD = "import json, socket, sys\naddress = ('127.0.0.1', int(sys.argv[1]))\n"
BULK = HEAD + (
    "import threading\n"
    "made = socket.create_connection(address)\n"
    f"sent = bytes(range(256)) * {BULK_BYTES // 256}\n"
    "def send():\n"
    "    made.sendall(sent)\n"
    "    made.shutdown(socket.SHUT_WR)\n"
    "threading.Thread(target=send).start()\n"
    "got = bytearray()\n"
    "while piece := made.recv(1 << 20):\n"
    "    got += piece\n"
    "print(json.dumps([len(got), bytes(got) == sent]))\n"
)
"""Sends much, ends its direction, and reads to the end meanwhile."""
MANY = HEAD + (
    f"for number in range({IN_A_ROW}):\n"
    "    with socket.create_connection(address) as made:\n"
    "        made.sendall(b'%d' % number)\n"
    "        made.shutdown(socket.SHUT_WR)\n"
    "        assert made.recv(100) == b'%d' % number, number\n"
    "        assert made.recv(100) == b'', number\n"
)
CROWD = HEAD + (
    f"crowd = [socket.create_connection(address) for _ in range({MAX_CONNECTIONS + SURPLUS})]\n"
    "for made in crowd:\n"
    "    made.sendall(b'x')\n"
    "for made in crowd:\n"
    "    made.shutdown(socket.SHUT_WR)\n"
    "    assert made.recv(1) == b'x'\n"
    "    made.close()\n"
)
"""Opens more connections than the limit and ends them one after the other."""
DRIP = HEAD + (
    "import time\n"
    "made = socket.create_connection(address)\n"
    "open('begun', 'w').close()\n"
    "while not __import__('os').path.exists('go'):\n"
    "    time.sleep(0.02)\n"
    "got = 0\n"
    "while piece := made.recv(1 << 20):\n"
    "    got += len(piece)\n"
    "print(got)\n"
)
"""Reads nothing until the file `go` exists, then everything."""
FLOOD = HEAD + (
    "made = socket.create_connection(address)\n"
    "made.settimeout(1)\n"
    "sent = 0\n"
    "try:\n"
    f"    while sent < {2 * MOST_HELD_BYTES}:\n"
    "        sent += made.send(bytes(1 << 20))\n"
    "except socket.timeout:\n"
    "    pass\n"
    "print(sent)\n"
)
"""Sends until nobody takes it for a second; prints how much was taken."""
CONNECT = HEAD + (
    "try:\n"
    "    with socket.create_connection(address, 5) as made:\n"
    "        made.settimeout(5)\n"
    "        made.sendall(b'x')\n"
    "        print('answered' if made.recv(1) else 'closed')\n"
    "except OSError:\n"
    "    print('refused')\n"
)
STAY = HEAD + (
    "made = socket.create_connection(address)\n"
    "open('begun', 'w').close()\n"
    "try:\n"
    "    print('data' if made.recv(1) else 'closed')\n"
    "except OSError:\n"
    "    print('reset')\n"
)
"""Waits for the end of a connection."""


class _Served:
    """Makes the protocols of one port, and keeps them."""

    def __init__(self, *, reads: bool = True) -> None:
        self.made: list[_Echo] = []
        self.reads = reads

    def __call__(self) -> _Echo:
        self.made.append(_Echo(reads=self.reads))
        return self.made[-1]

    @property
    def open(self) -> int:
        """Number of connections."""
        return sum(not each.lost.is_set() for each in self.made)


class _Echo(asyncio.Protocol):
    """Sends back what it receives, and ends its direction after the other side did."""

    def __init__(self, *, reads: bool) -> None:
        self._reads = reads
        self.lost = asyncio.Event()
        self.paused = asyncio.Event()
        self.resumed = asyncio.Event()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if not self._reads:
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.paused.set()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.resumed.set()
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


async def program(bench: Trial, slot: Slot, code: str, port: int, **options: Any) -> str:
    """Run Python in the slot; its output."""
    return await bench.out(slot, f"python3 - {port}", stdin=code.encode(), **options)


async def within(awaitable: Any, what: str) -> Any:
    """Await it for `ANSWER_S` at most. Raises CheckFailed."""
    try:
        return await asyncio.wait_for(awaitable, ANSWER_S)
    except TimeoutError:
        raise CheckFailed(f"{what} did not happen within {ANSWER_S:g} s") from None


async def present(bench: Trial, slot: Slot, path: str) -> None:
    """Wait until the file exists in the slot."""
    while not (await bench.sh(slot, f"test -e {path}")).ok:
        await asyncio.sleep(0.02)


@check()
async def a_program_in_the_slot_talks_to_the_worker(bench: Trial, slot: Slot) -> None:
    """Carry each connection from the slot to a protocol of the factory unchanged: 10 MB both ways
    at once, either direction ended first, 200 connections in a row, no descriptors left.
    """
    served = _Served()
    listening = await bench.backend.listen(slot, served)
    same(listening.host, LOOPBACK, "host")
    found = json.loads(await program(bench, slot, BULK, listening.port))
    same(found, [BULK_BYTES, True], "echo of 10 MB")
    same(len(served.made), 1, "connections")
    before = len(os.listdir("/proc/self/fd"))
    await program(bench, slot, MANY, listening.port)
    same(len(served.made), 1 + IN_A_ROW, "connections")
    await within(asyncio.gather(*(each.lost.wait() for each in served.made)), "their end")
    left = len(os.listdir("/proc/self/fd")) - before
    expect(left < 16, f"{left} descriptors were left by {IN_A_ROW} connections")
    await listening.close()


@check()
async def connections_are_bounded_and_slow_readers_wait(bench: Trial, slot: Slot) -> None:
    """Let connections beyond `MAX_CONNECTIONS` wait for an end of others, pause the protocol while
    a program does not read, and let the program wait while the protocol has paused reading.
    """
    served = _Served()
    listening = await bench.backend.listen(slot, served)
    crowd = asyncio.create_task(program(bench, slot, CROWD, listening.port))
    while not crowd.done():
        expect(served.open <= MAX_CONNECTIONS, f"{served.open} connections are open at once")
        await asyncio.sleep(0.005)
    crowd.result()
    same(len(served.made), MAX_CONNECTIONS + SURPLUS, "connections of the crowd")

    drip = asyncio.create_task(program(bench, slot, DRIP, listening.port, timeout_s=60))
    await present(bench, slot, "begun")
    while len(served.made) == MAX_CONNECTIONS + SURPLUS:  # it is on its way
        await asyncio.sleep(0.005)
    writer, written = served.made[-1], 0
    while not writer.paused.is_set() and written < MOST_HELD_BYTES:
        writer.transport.write(bytes(1 << 16))
        written += 1 << 16
        await asyncio.sleep(0)
    expect(writer.paused.is_set(), f"{written} bytes were taken that nobody reads")
    await bench.out(slot, "touch go")
    await within(writer.resumed.wait(), "resume_writing after the program read")
    writer.transport.close()
    same(await drip, str(written), "bytes that the slow program read")
    await listening.close()

    deaf = await bench.backend.listen(slot, _Served(reads=False))
    taken = int(await program(bench, slot, FLOOD, deaf.port, timeout_s=60))
    expect(taken < MOST_HELD_BYTES, f"{taken} bytes were taken for a protocol that does not read")
    await deaf.close()


@check()
async def a_port_ends_with_its_owner_and_with_the_slot(bench: Trial, slot: Slot) -> None:
    """Reset connections and refuse new ones after `close`, `renew`, `terminate` and `stop`. Report
    all but the first in `lost`, and raise SlotLost when a slot that is not leased is to listen.
    """
    served = _Served()
    listening = await bench.backend.listen(slot, served)
    staying = await _stay(bench, slot, listening, served)
    await listening.close()
    await listening.close()
    same((served.open, listening.lost.cancelled()), (0, True), "open, cancelled")
    expect(await staying in ("reset", "closed"), "the program's connection did not end")
    same(await program(bench, slot, CONNECT, listening.port), "refused", "after close")

    listening = await bench.backend.listen(slot, served)
    same(await program(bench, slot, CONNECT, listening.port), "answered", "opened again")
    renewed = await bench.backend.renew(slot)
    expect(isinstance(await within(_why(listening), "lost after renew"), SlotLost), "lost")
    same(await program(bench, renewed, CONNECT, listening.port), "refused", "after renew")
    with raising(SlotLost, of="listen:"):
        await bench.backend.listen(slot, served)

    other = await bench.slot()
    ends = [await bench.backend.listen(each, served) for each in (renewed, other)]
    await bench.backend.release(other)
    await within(_why(ends[1]), "lost after release")
    await bench.backend.terminate(renewed.sandbox_id)
    expect(isinstance(await within(_why(ends[0]), "lost after terminate"), SandboxError), "lost")
    await bench.backend.release(renewed)

    last = await bench.backend.listen(await bench.slot(), served)
    await bench.backend.stop()
    await within(_why(last), "lost after stop")
    same(served.open, 0, "open connections")


@check(isolated=True)
async def another_slot_cannot_connect(bench: Trial) -> None:
    """Refuse connections of other slots, even of those in the same sandbox."""
    own, other = await bench.slot(), await bench.slot()
    first, second = _Served(), _Served()
    port = (await bench.backend.listen(own, first)).port
    await bench.backend.listen(other, second)
    for slot, answer in ((own, "answered"), (other, "refused")):
        found = await program(bench, slot, CONNECT, port)
        same("answered" if found == "answered" else "refused", answer)
    same((len(first.made), len(second.made)), (1, 0), "connections")


async def _stay(
    bench: Trial, slot: Slot, listening: Listening, served: _Served
) -> asyncio.Task[str]:
    """A program with an open connection."""
    running = asyncio.create_task(program(bench, slot, STAY, listening.port))
    await present(bench, slot, "begun")
    while not served.open:
        await asyncio.sleep(0.01)
    return running


async def _why(listening: Listening) -> SandboxError:
    return await asyncio.shield(listening.lost)
