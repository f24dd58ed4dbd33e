"""Ports that a relay holds: the program itself as a process, and streams that are wrong."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

import pytest

from hermes_queue.errors import SandboxError, SlotLost
from hermes_queue.sandbox import base
from hermes_queue.sandbox.listening import relay, relay_process
from hermes_queue.sandbox.listening.relay import Relay, program
from hermes_queue.sandbox.listening.relay_process import (
    BEAT,
    CLOSED,
    COUNT,
    CREDIT,
    DATA,
    END,
    GREETING,
    HELLO,
    MAX_CONNECTIONS,
    MAX_PAYLOAD,
    OPEN,
    WINDOW,
    frame,
)
from hermes_queue.sandbox.listening.relayed import RelayedListening

GREETED = frame(0, HELLO, GREETING.pack(4242, 0))


class ProcessWire:
    """The program as a child of the test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def read(self):
        while data := await self.process.stdout.read(1 << 16):
            yield data

    async def write(self, data: bytes) -> None:
        self.process.stdin.write(data)
        with contextlib.suppress(ConnectionError):
            await self.process.stdin.drain()

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def close(self) -> None:
        self.process.stdin.close()

    async def complaint(self) -> str:
        return ""


@pytest.fixture
async def start():
    """Start the program as the relay of a port; all are killed at the end."""
    wires = []

    async def wire(port: int = 0, text: str = "") -> ProcessWire:
        words = ["-I", "-S", "-c", text or program(), "0", str(port)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdin=pipe, stdout=pipe
        )
        wires.append(ProcessWire(process))
        return wires[-1]

    wire.made = wires
    yield wire
    for each in wires:
        await each.kill()
        await each.close()
        each.process._transport.close()


class Quiet(asyncio.Protocol):
    """Records what happens to it."""

    def __init__(self) -> None:
        self.data = b""
        self.seen: list[str] = []
        self.made, self.lost = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport
        self.made.set()

    def data_received(self, data):
        self.data += data

    def eof_received(self):
        self.seen.append("eof")
        return True

    def pause_writing(self):
        self.seen.append("pause")

    def resume_writing(self):
        self.seen.append("resume")

    def connection_lost(self, exc):
        self.seen.append(type(exc).__name__)
        self.lost.set()


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def connect(port: int) -> asyncio.StreamWriter:
    """Connect, once something listens."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return (await asyncio.open_connection("127.0.0.1", port))[1]
        await asyncio.sleep(0.01)


def test_connections_of_neighbours_use_up_nothing_of_the_slots_own(monkeypatch):
    monkeypatch.setattr(relay_process.os, "set_blocking", lambda *_: None)
    monkeypatch.setattr(relay_process, "knows_owners", lambda *_: True)
    owners = [*range(20_002, 20_002 + 2 * relay_process.MAX_BURST), 20_001]
    monkeypatch.setattr(relay_process, "owner_of", lambda *_: owners.pop(0))
    listener = socket.create_server(("127.0.0.1", 0))
    server = relay_process.RelayServer(listener, 20_001)
    while owners:
        with socket.create_connection(listener.getsockname()):
            server._accept(1.0)
            assert server._accept_at == 0.0
    assert len(server._connections) == 1
    server.close()


@pytest.fixture
async def connected(start):
    """A program's streams and the protocol of its connection."""
    protocol = Quiet()
    listening = RelayedListening("slot", start, lambda: protocol)
    await listening.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port, limit=1 << 12)
    await protocol.made.wait()
    yield protocol, reader, writer
    writer.transport.abort()
    await listening.close()


def test_the_program_has_the_limit_of_the_contract():
    assert relay_process.MAX_CONNECTIONS == base.MAX_CONNECTIONS


# --- connections --------------------------------------------------------------------------


async def test_the_write_buffer_is_empty_once_the_programs_kernel_has_everything(connected):
    protocol, reader, _ = connected
    protocol.transport.set_write_buffer_limits(0)
    protocol.transport.write(b"answer")
    assert (protocol.transport.get_write_buffer_size(), protocol.seen) == (6, ["pause"])
    await until(lambda: protocol.seen == ["pause", "resume"])
    assert protocol.transport.get_write_buffer_size() == 0
    assert await reader.readexactly(6) == b"answer"


async def test_bytes_for_a_program_that_does_not_read_stay_in_the_buffer(connected):
    protocol, reader, _ = connected
    reader._transport.pause_reading()
    size = 32 << 20
    protocol.transport.write(bytes(size))
    await until(lambda: protocol.transport._under_way == WINDOW)
    assert protocol.transport.get_write_buffer_size() > size // 2
    reader._transport.resume_reading()
    assert len(await reader.readexactly(size)) == size
    await until(lambda: "resume" in protocol.seen)


async def test_either_side_may_end_its_direction_first(connected):
    protocol, reader, writer = connected
    protocol.transport.write(b"all")
    protocol.transport.write_eof()
    assert await reader.read() == b"all"
    writer.write(b"more")
    await until(lambda: protocol.data == b"more")
    writer.write_eof()
    await protocol.lost.wait()
    assert protocol.seen == ["eof", "NoneType"]


async def test_closing_sends_what_was_written_and_aborting_resets(connected):
    protocol, reader, _ = connected
    protocol.transport.write(bytes(1 << 20))
    protocol.transport.close()
    protocol.transport.write(b"too late")
    assert len(await reader.read()) == 1 << 20
    await protocol.lost.wait()
    assert protocol.seen[-1] == "NoneType"


async def test_a_reset_of_the_program_is_an_error(connected):
    protocol, _, writer = connected
    protocol.transport.write(bytes(1 << 20))
    writer.transport.abort()
    await protocol.lost.wait()
    assert protocol.seen[-1] == "ConnectionResetError"


async def test_a_protocol_that_raises_ends_its_own_connection_only(connected):
    protocol, reader, writer = connected
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    protocol.data_received = lambda data: 1 // 0
    writer.write(b"x")
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    assert [type(each["exception"]) for each in reported] == [ZeroDivisionError]


async def test_connections_come_and_go_and_their_number_is_bounded(start):
    served = []
    listening = RelayedListening("slot", start, lambda: served.append(Quiet()) or served[-1])
    await listening.start()
    crowd = [await connect(listening.port) for _ in range(MAX_CONNECTIONS + 3)]
    await until(lambda: len(served) == MAX_CONNECTIONS)
    for writer in crowd:
        writer.close()
        await writer.wait_closed()
    for number in range(len(crowd)):
        await until(lambda number=number: len(served) > number and "eof" in served[number].seen)
        assert len(served) <= number + MAX_CONNECTIONS
        served[number].transport.close()
        await served[number].lost.wait()
    assert listening._relay._connections == {}
    await listening.close()


# --- a stream that is lost ----------------------------------------------------------------


async def test_a_lost_relay_starts_once_more_on_its_port_and_is_then_a_lost_slot(start):
    made = []
    listening = RelayedListening("slot", start, lambda: made.append(Quiet()) or made[-1])
    await listening.start()
    for round_ in (1, 2):
        writer = await connect(listening.port)
        await until(lambda round_=round_: len(made) == round_ and made[-1].made.is_set())
        await start.made[-1].kill()
        await made[-1].lost.wait()
        assert made[-1].seen == ["ConnectionResetError"]
        writer.transport.abort()
    lost = await asyncio.wait_for(asyncio.shield(listening.lost), 20)
    assert isinstance(lost, SlotLost)
    await listening.close()
    assert len(start.made) == 2


async def test_the_program_ends_when_its_worker_is_silent(start):
    text = program().replace("ORPHANED_S = 45.0", "ORPHANED_S = 0.1")
    assert text != program()
    wire = await start(0, text)
    assert await asyncio.wait_for(wire.process.wait(), 20) == 0


async def test_a_silent_relay_is_lost(monkeypatch):
    monkeypatch.setattr(relay, "BEAT_S", 0.02)
    monkeypatch.setattr(relay, "SILENT_S", 0.05)
    run = Relay(FixedWire(GREETED, silent=True), Quiet)
    assert "was silent" in str(await run.ended)
    await run.abandon()


# --- a hostile stream ---------------------------------------------------------------------


class FixedWire:
    """Sends these bytes, whatever it is sent."""

    def __init__(self, *data: bytes, silent: bool = False) -> None:
        self.data, self.silent = data, silent
        self.killed = 0

    async def read(self):
        for each in self.data:
            yield each
            await asyncio.sleep(0)
        if self.silent:
            await asyncio.Event().wait()

    async def write(self, data: bytes) -> None: ...

    async def kill(self) -> None:
        self.killed += 1

    async def close(self) -> None: ...

    async def complaint(self) -> str:
        return "Traceback"


OPENED = GREETED + frame(1, OPEN)
PIECE = frame(1, DATA, bytes(MAX_PAYLOAD))
HOSTILE = {
    "no greeting": b"GREETINGS" + bytes(100),
    "two greetings": GREETED + GREETED,
    "a short greeting": frame(0, HELLO, b"x"),
    "an endless frame": GREETED + b"\0\0\0\1\4\xff\xff\xff\xff",
    "an unknown connection": GREETED + frame(7, DATA, b"x"),
    "a connection that was opened before": OPENED + frame(1, OPEN),
    "a connection that is over": OPENED + frame(1, CLOSED, b"\0") + frame(1, END),
    "more connections than allowed": GREETED
    + b"".join(frame(n, OPEN) for n in range(1, MAX_CONNECTIONS + 2)),
    "data after its end": OPENED + frame(1, END) + frame(1, DATA, b"x"),
    "a credit for nothing": OPENED + frame(1, CREDIT, COUNT.pack(1)),
    "a malformed credit": OPENED + frame(1, CREDIT, b"x"),
    "an unknown kind": OPENED + frame(1, 77),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
async def test_what_a_relay_must_not_send_ends_it(data):
    run = Relay(FixedWire(data, silent=True), Quiet)
    assert "sent what it must not" in str(await asyncio.wait_for(asyncio.shield(run.ended), 20))
    assert run._connections == {} or all(each.is_closing() for each in run._connections.values())
    await run.abandon()


async def test_data_beyond_the_window_ends_it_when_nobody_reads():
    class Deaf(Quiet):
        def connection_made(self, transport):
            transport.pause_reading()

    run = Relay(FixedWire(OPENED, PIECE * (WINDOW // MAX_PAYLOAD), PIECE, silent=True), Deaf)
    assert "data that was not allowed" in str(await run.ended)
    await run.abandon()


async def test_a_relay_that_does_not_start_is_named_with_its_complaint_and_killed():
    wire = FixedWire(frame(0, BEAT))

    async def open_wire(port):
        return wire

    listening = RelayedListening("slot", open_wire, Quiet)
    with pytest.raises(SandboxError, match="Traceback"):
        await listening.start()
    assert wire.killed == 1
