"""Carries the connections of one slot to a worker that cannot reach the slot's network.

A program of its own, which runs inside the sandbox. Its standard input and output are streams of
frames, whose other end is `relay.Relay`. A frame is the number of a connection, a kind and a
payload:

    OPEN    a program has connected             (to the worker)
    DATA    at most `MAX_PAYLOAD` bytes         (both ways)
    END     this side sends no more             (both ways)
    CREDIT  the number of bytes that were taken (both ways)
    CLOSE   end the connection after its data; RESET: at once    (from the worker)
    CLOSED  it is over, 1 = reset; the last frame of a connection (to the worker)

and without a connection, HELLO (the port, and whether owners of connections are known), BEAT
(both ways, when nothing else is sent), STOP (from the worker). Of a connection's bytes at most
`WINDOW` are under way per direction, so neither side stores more.

The program is sent as text: it imports nothing of ours and runs on Python 3.7.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator

HEADER = struct.Struct("!IBI")
GREETING = struct.Struct("!HB")
COUNT = struct.Struct("!I")
HELLO, BEAT, STOP, OPEN, DATA, END, CREDIT, CLOSE, RESET, CLOSED = range(10)
MAX_PAYLOAD = 64 << 10
WINDOW = 256 << 10
MAX_CONNECTIONS = 64
BEAT_S = 5.0
ORPHANED_S = 45.0
"""After so long without a frame the worker is dead, and this program ends: a running command would
keep the provider from ending an idle sandbox."""

LOOPBACK, BACKLOG = "127.0.0.1", 128
STDIN, STDOUT = 0, 1
READ_BYTES = 256 << 10
MAX_UNSENT = 1 << 20
"""For the worker, in this process; then nothing more is read from connections."""
ACCEPT_PAUSE_S = 1.0
MAX_BURST, MAX_PER_S = 256, 200.0
"""Connections that may come at once, and then per second: each costs time of the worker's loop."""
TABLES = (("/proc/net/tcp", False), ("/proc/net/tcp6", True))
"""Lists of connections, and whether they have IPv4 addresses in the form of IPv6."""
UID = 7
"""Column of them; the connection's two addresses stand before it, with one blank between them."""


def frame(number: int, kind: int, payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    return HEADER.pack(number, kind, len(payload)) + payload


class Rate:
    """Allows `MAX_BURST` things at once and `MAX_PER_S` in the long run."""

    def __init__(self) -> None:
        self._left, self._at = float(MAX_BURST), 0.0

    def wait_s(self, now: float) -> float:
        """0: take one now; else seconds until one can be taken. `now` is of a monotonic clock."""
        if self._at:
            self._left = min(MAX_BURST, self._left + (now - self._at) * MAX_PER_S)
        self._at = now
        if self._left < 1:
            return (1 - self._left) / MAX_PER_S
        self._left -= 1
        return 0.0

    def give_back(self) -> None:
        """Take one thing less: it cost nothing."""
        self._left = min(MAX_BURST, self._left + 1)


class Frames:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Number, kind and payload of each frame that is complete now. Raises ValueError."""
        rest, at = self._rest, 0
        rest += data
        try:
            while len(rest) >= at + HEADER.size:
                number, kind, length = HEADER.unpack_from(rest, at)
                if length > MAX_PAYLOAD:
                    raise ValueError(f"a frame of {length} bytes")
                begin = at + HEADER.size
                if len(rest) < begin + length:
                    return
                at = begin + length
                yield number, kind, bytes(rest[begin:at])
        finally:
            del rest[:at]


def owner_of(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Uid of the socket at `peer` that is connected to `own`; None if there is none any more.

    Both are IPv4 addresses in this process's network namespace, of which it reads the list of
    connections. A socket that its process has closed has no owner, or seems to be root's.
    """
    for table, mapped in TABLES:
        wanted = f" {_shown(peer, mapped=mapped)} {_shown(own, mapped=mapped)} "
        try:
            with open(table, encoding="ascii", errors="replace") as lines:
                for line in lines:
                    if wanted in line:
                        return int(line.split()[UID])
        except (OSError, ValueError, IndexError):
            continue
    return None


def _shown(address: tuple[str, int], *, mapped: bool) -> str:
    """The address as in the list."""
    packed = socket.inet_aton(address[0])
    if mapped:
        packed = bytes(10) + b"\xff\xff" + packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"


def knows_owners(listener: socket.socket, uid: int) -> bool:
    """Whether the kernel tells the owner of a connection: tried with a socket of `uid`."""
    try:
        # Others of this uid cannot signal this process: its real uid stays root's.
        os.seteuid(uid)
        try:
            probe = socket.socket()
        finally:
            os.seteuid(0)
        with probe:
            probe.connect(listener.getsockname())
            for _ in range(2 * BACKLOG):  # others may have connected before
                accepted, peer = listener.accept()
                with accepted:
                    if peer == probe.getsockname():
                        return owner_of(peer, accepted.getsockname()) == uid
    except OSError:
        pass
    return False


class Connection:
    """A connection of a program in the slot."""

    def __init__(self, number: int, program: socket.socket) -> None:
        self.number = number
        self.program = program
        self.window = WINDOW
        """Bytes that the worker takes from now on."""
        self.pending = bytearray()
        """For the program."""
        self.taken = 0
        """Bytes that the program has taken since the last credit for them."""
        self.reads = True
        """Whether the program may still send."""
        self.ending = self.closing = self.shut = False
        """Whether the worker has ended its direction or the connection; the former was done."""
        self.polled = 0
        """Events that are waited for."""


class RelayServer:
    """Accepts connections and serves them until the worker is gone."""

    def __init__(self, listener: socket.socket, uid: int) -> None:
        """`uid`: the only one that may connect; 0 = everybody may."""
        self._listener = listener
        self._uid = uid if uid and knows_owners(listener, uid) else 0
        listener.setblocking(False)
        os.set_blocking(STDIN, False)
        os.set_blocking(STDOUT, False)
        self._frames = Frames()
        self._unsent = bytearray()
        self._connections: dict[int, Connection] = {}
        self._count = 0
        self._rate = Rate()
        self._accept_at = self._sent_at = 0.0
        self._heard_at = time.monotonic()
        port = listener.getsockname()[1]
        self._send(0, HELLO, GREETING.pack(port, bool(self._uid)))

    def _send(self, number: int, kind: int, payload: bytes = b"") -> None:
        self._unsent += frame(number, kind, payload)

    def serve(self) -> None:
        """Serve until the worker says `STOP`, closes the stream, or is silent."""
        while True:
            events = dict(self._wait())
            now = time.monotonic()
            if STDIN in events:
                self._heard_at = now
                if not self._hear():
                    return
            if now - self._heard_at > ORPHANED_S:
                return
            if events.get(self._listener.fileno()):
                self._accept(now)
            for connection in list(self._connections.values()):
                event = events.get(connection.program.fileno(), 0)
                if event and connection.pending:
                    self._give(connection)
                if event & ~select.POLLOUT and connection.polled & select.POLLIN:
                    self._take(connection)
            if now - self._sent_at >= BEAT_S and not self._unsent:
                self._send(0, BEAT)
            self._say(now)

    def _wait(self) -> list[tuple[int, int]]:
        poll, now = select.poll(), time.monotonic()
        poll.register(STDIN, select.POLLIN)
        if self._unsent:
            poll.register(STDOUT, select.POLLOUT)
        if len(self._connections) < MAX_CONNECTIONS and now >= self._accept_at:
            poll.register(self._listener, select.POLLIN)
        has_room = len(self._unsent) < MAX_UNSENT
        for each in self._connections.values():
            reads = each.reads and has_room and each.window and not each.closing
            each.polled = select.POLLOUT if each.pending else 0
            if reads:
                each.polled |= select.POLLIN
            if each.polled:  # else its end would be reported all the time
                poll.register(each.program, each.polled)
        return poll.poll(1000 if now >= self._accept_at else 20)

    def _say(self, now: float) -> None:
        """Write as much to the worker as it takes."""
        while self._unsent:
            try:
                count = os.write(STDOUT, self._unsent[:READ_BYTES])
            except BlockingIOError:
                return
            del self._unsent[:count]
            self._sent_at = now

    def _hear(self) -> bool:
        """Read from the worker; returns whether to go on."""
        try:
            data = os.read(STDIN, READ_BYTES)
        except BlockingIOError:
            return True
        for number, kind, payload in self._frames.feed(data):
            if kind == STOP:
                return False
            connection = self._connections.get(number)
            if connection is not None:  # else it is over, which the worker is about to learn
                self._obey(connection, kind, payload)
        return bool(data)

    def _obey(self, connection: Connection, kind: int, payload: bytes) -> None:
        if kind == DATA:
            connection.pending += payload
            if len(connection.pending) > WINDOW:
                raise ValueError("the worker exceeds the window")
            self._give(connection)
        elif kind == CREDIT:
            connection.window += COUNT.unpack(payload)[0]
        elif kind == RESET:
            self._close(connection, reset=True)
        elif kind in (END, CLOSE):
            connection.ending = True
            connection.closing = connection.closing or kind == CLOSE
            self._finish(connection)

    def _accept(self, now: float) -> None:
        wait_s = self._rate.wait_s(now)
        if wait_s:
            self._accept_at = now + wait_s
            return
        try:
            program, peer = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._accept_at = now + ACCEPT_PAUSE_S
            return
        if self._uid and owner_of(peer, program.getsockname()) != self._uid:
            _reset(program)
            self._rate.give_back()  # else neighbours could use up what the slot may take
            return
        program.setblocking(False)
        program.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._count += 1
        self._connections[self._count] = Connection(self._count, program)
        self._send(self._count, OPEN)

    def _take(self, connection: Connection) -> None:
        """Read from the program."""
        if connection.program.fileno() < 0:
            return
        try:
            data = connection.program.recv(min(connection.window, MAX_PAYLOAD))
        except BlockingIOError:
            return
        except OSError:
            self._close(connection, reset=True)
            return
        if data:
            connection.window -= len(data)
            self._send(connection.number, DATA, data)
        else:
            connection.reads = False
            self._send(connection.number, END)
            self._finish(connection)

    def _give(self, connection: Connection) -> None:
        """Write to the program."""
        try:
            count = connection.program.send(connection.pending)
        except BlockingIOError:
            return
        except OSError:
            self._close(connection, reset=True)
            return
        del connection.pending[:count]
        connection.taken += count
        if not connection.pending or connection.taken >= WINDOW // 4:
            self._send(connection.number, CREDIT, COUNT.pack(connection.taken))
            connection.taken = 0
        self._finish(connection)

    def _finish(self, connection: Connection) -> None:
        """Do what the worker wants after its data."""
        if connection.pending or not connection.ending:
            return
        if connection.closing or not connection.reads:
            self._close(connection, reset=False)
        elif not connection.shut:
            connection.shut = True
            try:
                connection.program.shutdown(socket.SHUT_WR)
            except OSError:
                self._close(connection, reset=True)

    def _close(self, connection: Connection, *, reset: bool) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        if reset:
            _reset(connection.program)
        else:
            connection.program.close()
        self._send(connection.number, CLOSED, bytes([reset]))

    def close(self) -> None:
        """Reset what is left, and close the port."""
        self._listener.close()
        for connection in self._connections.values():
            _reset(connection.program)


def _reset(program: socket.socket) -> None:
    program.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    program.close()


def main() -> None:
    """Serve the uid in the first argument (0 = all) at the port in the second (0 = any)."""
    uid, port = map(int, sys.argv[1:3])
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((LOOPBACK, port))
    listener.listen(BACKLOG)
    server = RelayServer(listener, uid)
    try:
        server.serve()
    except BrokenPipeError:
        pass  # the worker is gone
    finally:
        server.close()


if __name__ == "__main__":
    main()
