"""Ports in local slots: what they do not open, and what is left of them."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from pathlib import Path

import pytest

from hermes_queue.errors import SlotLost
from hermes_queue.sandbox.base import MAX_CONNECTIONS
from hermes_queue.sandbox.host import spawner
from hermes_queue.sandbox.listening import sockets
from hermes_queue.sandbox.listening.relay_process import MAX_BURST, MAX_PER_S, Rate, owner_of
from hermes_queue.sandbox.listening.sockets import SocketListening, listen_on_loopback


@pytest.fixture
async def local(make_bench):
    return await make_bench("local", slots=2)


@pytest.fixture(params=["local", "local-unfenced"])
async def any_local(make_bench, request):
    return await make_bench(request.param, slots=1)


class Greeter(asyncio.Protocol):
    """Greets whoever connects."""

    def connection_made(self, transport):
        self.transport = transport
        transport.write(b"hello\n")


async def greeting(bench, slot, port: int, host: str = "127.0.0.1") -> str:
    """What a connection from the slot receives."""
    read = f"exec 3<>/dev/tcp/{host}/{port} && head -n 1 <&3"
    return (await bench.sh(slot, read, timeout_s=20)).stdout.decode()


def descriptors() -> int:
    gc.collect()  # what earlier tests left must not be closed in between
    return len(os.listdir("/proc/self/fd"))


async def why(listening) -> Exception:
    return await asyncio.wait_for(asyncio.shield(listening.lost), 20)


async def test_nothing_but_the_port_becomes_reachable(local):
    slot = await local.slot()
    with listen_on_loopback() as of_the_host:
        host_port = of_the_host.getsockname()[1]
        listening = await local.backend.listen(slot, Greeter)
        assert await greeting(local, slot, listening.port) == "hello\n"
        for port in (host_port, listening.port + 1):
            assert await greeting(local, slot, port) == ""
        assert await greeting(local, slot, listening.port, "192.0.2.1") == ""
        with socket.socket() as stranger:
            assert stranger.connect_ex(("127.0.0.1", listening.port)) != 0


async def test_a_slot_that_dies_loses_its_ports_at_once(local):
    slot = await local.slot()
    made = []
    listening = await local.backend.listen(slot, lambda: made.append(Greeter()) or made[-1])
    assert await greeting(local, slot, listening.port)
    os.kill(local.backend._slots[slot.slot_id].fence.init_pid, signal.SIGKILL)
    assert isinstance(await why(listening), SlotLost)
    with pytest.raises(SlotLost):
        await local.backend.listen(slot, Greeter)


async def test_a_slot_whose_spawner_is_gone_loses_its_ports(any_local):
    slot = await any_local.slot()
    listening = await any_local.backend.listen(slot, Greeter)
    any_local.backend._slots[slot.slot_id].fence.spawner.close()
    assert isinstance(await why(listening), SlotLost)


async def test_a_stopped_spawner_is_not_waited_for_without_a_limit(local, monkeypatch):
    slot = await local.slot()
    monkeypatch.setattr(spawner, "ANSWER_TIMEOUT_S", 0.3)
    server = local.backend._spawners._server.pid
    [process] = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    os.kill(int(process), signal.SIGSTOP)
    try:
        with pytest.raises(SlotLost):
            await local.backend.listen(slot, Greeter)
    finally:
        os.kill(int(process), signal.SIGCONT)


async def test_ports_leave_no_descriptors(any_local):
    slot = await any_local.slot()
    await (await any_local.backend.listen(slot, Greeter)).close()
    before = descriptors()
    for _ in range(50):
        listening = await any_local.backend.listen(slot, Greeter)
        await listening.close()
    assert descriptors() <= before  # what earlier tests left may be closed meanwhile
    await any_local.backend.listen(slot, Greeter)
    await any_local.backend.release(slot)
    assert descriptors() < before


@pytest.mark.skipif(os.geteuid() != 0, reason="slots of other users are those of their worker")
async def test_with_network_access_only_the_slots_own_user_connects(make_bench, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_LOCAL_NETWORK", "true")
    local = await make_bench("local", slots=2)
    slot, other = await local.slot(), await local.slot()
    made = []
    listening = await local.backend.listen(slot, lambda: made.append(Greeter()) or made[-1])
    assert await greeting(local, other, listening.port) == ""
    with socket.socket() as stranger:
        stranger.setblocking(False)
        await asyncio.get_running_loop().sock_connect(stranger, ("127.0.0.1", listening.port))
        assert await asyncio.get_running_loop().sock_recv(stranger, 1) == b""
    assert made == []
    assert await greeting(local, slot, listening.port) == "hello\n"


# --- without a slot -----------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_the_owner_of_a_connection_is_known_in_both_forms_of_addresses(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with listen_on_loopback() as listener, socket.socket(family) as program:
        own = listener.getsockname()
        program.connect((address, own[1]))
        accepted, peer = listener.accept()
        with accepted:
            assert owner_of(peer, accepted.getsockname()) == os.geteuid()
            assert owner_of((peer[0], own[1]), own) is None


def test_connections_come_in_a_burst_and_then_at_a_rate():
    rate = Rate()
    assert [rate.wait_s(1.0) for _ in range(MAX_BURST)] == [0.0] * MAX_BURST
    assert rate.wait_s(1.0) == 1 / MAX_PER_S
    assert [rate.wait_s(2.0) for _ in range(int(MAX_PER_S))] == [0.0] * int(MAX_PER_S)
    assert rate.wait_s(2.0) > 0


async def test_a_process_without_descriptors_accepts_again_later(monkeypatch, caplog):
    monkeypatch.setattr(sockets, "PAUSE_S", 0.01)
    listener = ShortOfDescriptors(listen_on_loopback())
    listening = SocketListening(listener, Greeter)
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    assert await reader.readline() == b"hello\n"
    assert [record.action for record in caplog.records] == ["accept_failed"]
    writer.close()
    await listening.close()


class ShortOfDescriptors:
    """A listening socket that cannot accept at first."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self._failures = listener, 1

    def accept(self):
        if self._failures:
            self._failures -= 1
            raise OSError(24, "Too many open files")
        return self._listener.accept()

    def __getattr__(self, name):
        return getattr(self._listener, name)


async def test_a_factory_that_raises_resets_one_connection_and_is_logged(caplog):
    made = []

    def factory():
        made.append(None)
        return [Broken, Greeter][len(made) - 1]()

    class Broken:
        def __init__(self):
            raise RuntimeError("no protocol")

    listening = SocketListening(listen_on_loopback(), factory)
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    assert await reader.read() == b""
    writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    assert await reader.readline() == b"hello\n"
    writer.close()
    assert [record.action for record in caplog.records] == ["connection_failed"]
    await listening.close()


async def test_a_protocol_with_its_own_buffer_is_served():
    class Buffered(asyncio.BufferedProtocol):
        def connection_made(self, transport):
            self.transport, self.space = transport, bytearray(3)

        def get_buffer(self, sizehint):
            return self.space

        def buffer_updated(self, nbytes):
            self.transport.write(self.space[:nbytes].upper())

    listening = SocketListening(listen_on_loopback(), Buffered)
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    writer.write(b"letters\n")
    assert await reader.readline() == b"LETTERS\n"
    writer.close()
    await listening.close()


async def test_closing_twice_at_once_waits_for_the_end_of_all_connections():
    made = []
    listening = SocketListening(listen_on_loopback(), lambda: made.append(Ending()) or made[-1])
    crowd = [
        await asyncio.open_connection("127.0.0.1", listening.port) for _ in range(MAX_CONNECTIONS)
    ]
    while len(made) < MAX_CONNECTIONS:
        await asyncio.sleep(0.01)
    first = asyncio.create_task(listening.close())
    await asyncio.sleep(0)
    await listening.close()
    assert all(each.is_over for each in made)
    await first
    for _, writer in crowd:
        writer.transport.abort()


class Ending(asyncio.Protocol):
    is_over = False

    def connection_lost(self, exc):
        self.is_over = True
