"""A session of a program's calls that answers by a script, and its server on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hermes_queue.agent.capture.calls import Answer, ModelCall
from hermes_queue.models import FunctionCall, Message, ToolCall, Usage

if TYPE_CHECKING:
    from hermes_queue.agent.capture.bounds import Bounds

KEY = "hq-" + 32 * "0f"


def reply(
    content: str | None = "hi",
    *,
    arguments: str | None = None,
    reasoning: str | None = None,
    finish: str = "stop",
    turn: int = 0,
) -> Answer:
    """An answer; with `arguments` it calls `bash`."""
    calls = ()
    if arguments is not None:
        calls = (ToolCall(id="call_1", function=FunctionCall(name="bash", arguments=arguments)),)
    message = Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)
    usage = Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=4)
    return Answer(turn=turn, message=message, finish_reason=finish, usage=usage)


async def say_hi(call: ModelCall) -> Answer:
    return reply()


@dataclass
class ScriptedSession:
    """Answers by `script`; keeps what it is told."""

    script: Callable[[ModelCall], Awaitable[Answer]] = say_hi
    key: str = KEY
    model: str = "policy"
    calls: list[ModelCall] = field(default_factory=list)
    told: list[Any] = field(default_factory=list)
    """`("delivered", turn)` and the like, in order."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, call: ModelCall) -> Answer:
        self.calls.append(call)
        try:
            return await self.script(call)
        except asyncio.CancelledError:
            self._tell("cancelled")
            raise

    def delivered(self, answer: Answer) -> None:
        self._tell("delivered", answer.turn)

    def undelivered(self, answer: Answer) -> None:
        self._tell("undelivered", answer.turn)

    async def count_tokens(self, call: ModelCall) -> int:
        self.calls.append(call)
        return 7 * len(call.messages)

    def rejected(self, method: str, path: str, status: int) -> None:
        self._tell(method, path, status)

    def broken(self, error: Exception) -> None:
        self._tell("broken", str(error))

    def _tell(self, *what: object) -> None:
        self.told.append(what)
        self.changed.set()

    async def until_told(self, *what: object) -> None:
        while what not in self.told:
            self.changed.clear()
            await self.changed.wait()


@asynccontextmanager
async def serving(
    session: ScriptedSession, bounds: Bounds | None = None, refusal_status: int = 401
) -> AsyncIterator[str]:
    """The URL of the session's server, without `/v1`."""
    from hermes_queue.agent.capture.opening import open_server

    calls = await open_server(session, refusal_status=refusal_status, bounds=bounds)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(calls.factory, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        await calls.close()
