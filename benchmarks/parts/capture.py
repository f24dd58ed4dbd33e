"""The endpoint of programs' model calls: CPU time of a call, memory of a thousand sessions.

A process serves the sessions; nothing is sampled, as a session answers at once or never. A call is
a body of 200 kB with 100 messages and 20 tools over loopback, on a connection that stays open, in
each of the three APIs, streamed. CPU time is that of the serving process. `call_kb`: memory of a
session whose call waits for the model, `idle_kb` of one whose connection is open and idle,
`open_kb` of one that nothing is connected to.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.measuring import Cases, Part, Turn, metered
from hermes_queue.agent.capture.calls import Answer, ModelCall
from hermes_queue.agent.capture.opening import open_server
from hermes_queue.models import FunctionCall, Message, ToolCall, Usage

CALLS, SESSIONS = 400, 1000
MESSAGES, TOOLS, BODY_BYTES = 100, 20, 200_000
KEY, WAITING = "hq-benchmark", "waits"
CALL = ToolCall(id="c", function=FunctionCall(name="bash", arguments='{"command": "ls"}'))
ANSWER = Answer(0, Message(role="assistant", tool_calls=(CALL,)), "tool_calls", Usage())


class _Answering:
    """A session that answers at once; a call for the model `waits` waits for ever."""

    key, model = KEY, "m"

    async def answer(self, call: ModelCall) -> Answer:
        if call.requested_model == WAITING:
            await asyncio.Event().wait()
        return ANSWER

    async def count_tokens(self, call: ModelCall) -> int:
        return 1

    def delivered(self, answer: Answer) -> None: ...
    def undelivered(self, answer: Answer) -> None: ...
    def rejected(self, method: str, path: str, status: int) -> None: ...
    def broken(self, error: Exception) -> None:
        raise error


async def _serve(told: Connection, count: int) -> None:
    loop = asyncio.get_running_loop()
    ports = []
    await open_server(_Answering())  # its imports are not a session's
    told.send(None)
    await asyncio.to_thread(told.recv)
    for _ in range(count):
        server = await open_server(_Answering())
        listener = await loop.create_server(server.factory, "127.0.0.1", 0)
        ports.append(listener.sockets[0].getsockname()[1])
    told.send(ports)
    await asyncio.to_thread(told.recv)


def serve(told: Connection, count: int) -> None:
    """The main function of the process: so many sessions, each on a port of its own."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_serve(told, count))


@contextmanager
def served(count: int) -> Iterator[tuple[int, int, list[int]]]:
    """The process id, its memory in kB before it opened the sessions, and their ports."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, count))
    process.start()
    assert process.pid is not None
    try:
        ours.recv()
        before = private_kb(process.pid)
        ours.send(None)
        yield process.pid, before, ours.recv()
        ours.send(None)
    finally:
        process.kill()
        process.join()


def private_kb(pid: int) -> int:
    """Memory that the process shares with no other one."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(size) for name, size, *_ in map(str.split, lines)}
    return sizes["Private_Clean:"] + sizes["Private_Dirty:"]


def body(path: str, model: str = "m") -> bytes:
    """A body of about `BODY_BYTES` with `MESSAGES` messages: half of them replies with a call."""
    text = ("a line of a file, or of what a command wrote\n" * BODY_BYTES)[
        : BODY_BYTES // (MESSAGES // 2) - 600
    ]
    schema = {"type": "object", "properties": {"command": {"type": "string", "description": "x"}}}
    names = [f"tool_{n}" for n in range(TOOLS)]
    data: dict[str, Any] = {"model": model, "stream": True, "max_tokens": 1000}
    turns = range(MESSAGES // 2)
    if path == "messages":
        data["tools"] = [{"name": name, "input_schema": schema} for name in names]
        data["messages"] = [each for n in turns for each in _messages_turn(n, text)]
        return json.dumps(data).encode()
    functions = [{"name": name, "parameters": schema} for name in names]
    if path == "responses":
        data["tools"] = [{"type": "function", **each} for each in functions]
        data["store"] = False
        data["input"] = [each for n in turns for each in _responses_turn(n, text)]
    else:
        data["tools"] = [{"type": "function", "function": each} for each in functions]
        data["messages"] = [each for n in turns for each in _chat_turn(n, text)]
    return json.dumps(data).encode()


def _chat_turn(n: int, text: str) -> tuple[dict[str, Any], ...]:
    function = {"name": "tool_0", "arguments": json.dumps({"command": f"cat {n}"})}
    call = {"id": f"c{n}", "type": "function", "function": function}
    told = {"role": "assistant", "content": "Let me see.", "tool_calls": [call]}
    return told, {"role": "tool", "tool_call_id": f"c{n}", "content": text}


def _responses_turn(n: int, text: str) -> tuple[dict[str, Any], ...]:
    call = {"name": "tool_0", "arguments": json.dumps({"command": f"cat {n}"})}
    return (
        {"type": "function_call", "call_id": f"c{n}", **call},
        {"type": "function_call_output", "call_id": f"c{n}", "output": text},
    )


def _messages_turn(n: int, text: str) -> tuple[dict[str, Any], ...]:
    call = {"id": f"c{n}", "name": "tool_0", "input": {"command": f"cat {n}"}}
    told = {"role": "assistant", "content": [{"type": "tool_use", **call}]}
    result = {"type": "tool_result", "tool_use_id": f"c{n}", "content": text}
    return told, {"role": "user", "content": [result]}


def request(path: str, data: bytes) -> bytes:
    """A whole request."""
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def read_stream(connection: socket.socket) -> None:
    """Read an answer in chunks to its end."""
    found = b""
    while not found.endswith(b"0\r\n\r\n"):
        piece = connection.recv(1 << 16)
        if not piece:
            raise RuntimeError(f"the server closed the connection: {found[:500]!r}")
        found += piece
    if not found.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(found[:500].decode())


def calls(path: str, count: int) -> Turn:
    """So many calls, one after the other."""
    sent = request(path, body(path))
    with served(1) as (pid, _, [port]), socket.create_connection(("127.0.0.1", port)) as connection:

        def call() -> None:
            connection.sendall(sent)
            read_stream(connection)

        for _ in range(20):
            call()
        with metered(server=pid) as meter:
            for _ in range(count):
                call()
    facts = {"cpu_ms_of_the_server": 1000 * meter.cpu_s["server"] / count, "body_bytes": len(sent)}
    return Turn(count, meter.wall_s, meter.cpu_s["server"], facts, meter.busy_elsewhere)


def sessions(count: int) -> Turn:
    """Sessions that wait."""
    waiting = request("chat/completions", body("chat/completions", WAITING))
    answered = request("chat/completions", body("chat/completions"))
    with served(count) as (pid, before, ports), ExitStack() as stack, metered(server=pid) as meter:
        opened = private_kb(pid)
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for port in ports
        ]
        for connection in connections:
            connection.sendall(answered)
            read_stream(connection)
        idle = private_kb(pid)
        for connection in connections:
            connection.sendall(waiting)
        for connection in connections:  # the first sign of life: all of the body was read
            connection.recv(1 << 16)
        called = private_kb(pid)
    facts = {
        "sessions": count,
        "open_kb": (opened - before) / count,
        "idle_kb": (idle - before) / count,
        "call_kb": (called - before) / count,
        "before_mb": before / 1024,
    }
    return Turn(0, meter.wall_s, meter.cpu_s["server"], facts, meter.busy_elsewhere)


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """Each API, and many sessions."""
    count, many = max(20, int(CALLS * scale)), max(10, int(SESSIONS * scale))
    yield {
        **{
            f"{path}, 200 kB": {"ours": partial(calls, path, count)}
            for path in ("chat/completions", "responses", "messages")
        },
        "sessions": {"ours": partial(sessions, many)},
    }


PART = Part("call", cases)
