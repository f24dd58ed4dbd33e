"""The calls of one attempt of a program: whether they are made, by whom, and what is kept.

Events and refusals are kept in bounded number. Whether a reply's tool calls fit the tools that the
program offered is seen without a full validator, which would follow references and run patterns of
unknown cost, for the tools come from a slot. So names, required arguments and the types of
arguments are looked at, and nothing deeper.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from hermes_queue.agent.budget import STUCK_TURNS, AttemptBudget
from hermes_queue.agent.capture.allowance import Allowance, LimitReached
from hermes_queue.agent.capture.calls import Answer, ModelCall, RefusalKind, Refused
from hermes_queue.agent.capture.equality import Measure, measured, reply_digest
from hermes_queue.agent.capture.open_calls import OpenCalls, Sampling
from hermes_queue.agent.capture.tree import Placement, ReplyTree, Unplaceable, understood
from hermes_queue.agent.chat import ChatClient, Reply
from hermes_queue.agent.fault import CallAtFault, answered, answers_again
from hermes_queue.agent.loop import AgentResult, BeforeTurn
from hermes_queue.agent.tokens.replies import ask
from hermes_queue.errors import ContextLengthExceeded, TrajectoryFailure
from hermes_queue.models import Message, StopReason, ToolCall

MAX_OPEN_CALLS = 8
"""Calls that are sampled at once, with those whose client went away; further ones wait."""
CALL_MAX_BYTES = 4 << 20
"""Text of one call. A longer one is refused as too long for any model."""
KEPT_MAX_BYTES = 32 << 20
"""Text of all conversations of an attempt, each message counted once."""
MAX_CONTEXT_REFUSALS = 3
"""Calls in a row that are too long for the model: such a program does not compact."""
MAX_FAULTY_CALLS = 3
"""Calls at which the model server fails although it answers others: each takes many tries."""
REQUESTS_PER_TURN = 50
"""Calls and token counts, refused and repeated ones included, per turn that the job allows."""
REQUESTS_AT_LEAST = 500
_BYTES_PER_TOKEN = 4
_MESSAGE_BYTES, _CALL_BYTES = 500, 1_500
"""Memory of one without its text."""

_MAX_EVENTS = 5_000
MAX_OTHER_REQUESTS = 50
"""Distinct requests that are counted one by one."""

_READ_CHARS = 1 << 18
"""Longer arguments count as invalid."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class AttemptSession:
    """A `Session`. Make it on the event loop; `close` ends it."""

    def __init__(
        self,
        chat: ChatClient,
        tree: ReplyTree,
        budget: AttemptBudget,
        result: AgentResult,
        *,
        model: str,
        before_turn: BeforeTurn | None = None,
    ) -> None:
        """Record the calls in `tree` and, as they happen, in `result`.

        `budget` moves its deadline by waits of `before_turn` and of the chat client.
        """
        self.key = f"hq-{secrets.token_hex(32)}"
        self.model = model
        self.account = _Account(result)
        self.stop_reason: StopReason | None = None
        """The limit that ended the attempt."""
        self.failure: Exception | None = None
        """Why the attempt cannot be measured."""
        self.ended = asyncio.Event()
        """Set with either of them."""
        self.asked = 0
        """Calls that came with the right key and a valid body."""
        self.context_was_refused = False
        """Whether the last call that was decided on was too long."""
        self._chat, self._tree, self._result, self._budget = chat, tree, result, budget
        self._allowance = Allowance(budget, result, before_turn)
        self._places = asyncio.Semaphore(MAX_OPEN_CALLS)
        self._open = OpenCalls()
        self._sealed = False
        self._delivered: set[bytes] = set()
        """What was asked by calls whose reply was delivered."""
        self._tool_calls: dict[int, tuple[int, int]] = {}
        """By turn that is not delivered: tool calls, and how many of them are valid."""
        self._last_step: tuple[bytes, bytes] | None = None
        self._repeats = 0
        self._context_refusals = 0
        self._refused_cap: int | None = None
        """A cap of the program's that the model server refused."""
        self._first: tuple[Sequence[Message], Sequence[Mapping[str, Any]]] | None = None
        """What was asked by the first call that got a reply: messages and tools."""
        self._faulty_calls = 0
        self._kept_bytes = 0
        self._began = time.monotonic()

    @property
    def delivered_replies(self) -> int:
        """Replies that the program has, also those that it only shows to have."""
        calls = [turn.call for turn in self._result.turns]
        return sum(call is not None and call.status == "delivered" for call in calls)

    @property
    def is_busy(self) -> bool:
        """Whether a call is open: it decides by itself what its deadline means."""
        return self._open.are_running

    async def idle(self) -> None:
        """Wait until no call is open."""
        await self._open.idle()

    # --- the endpoint's side: `Session` ------------------------------------------------

    async def answer(self, call: ModelCall) -> Answer:
        """See `Session`."""
        measure = await self._measured(call)
        if measure.size_bytes > CALL_MAX_BYTES:
            raise self._too_long(
                f"{measure.size_bytes} bytes of text, the most is {CALL_MAX_BYTES}"
            )
        if self._last_step and self._last_step[0] == measure.digest:
            if self._repeats >= STUCK_TURNS:
                self.stop("stuck")
                self._require_open()
        sampling = self._open.claim(measure) or await self._begun(call, measure)
        try:
            return await asyncio.shield(sampling.task)
        except asyncio.CancelledError:
            if sampling.task.cancelled():
                raise self.account.refusal("closed", "the attempt is over") from None
            self._open.give_up(sampling)
            raise

    def delivered(self, answer: Answer) -> None:
        """See `Session`. Ignored after the end: nobody can have read it."""
        sampling = None if self._sealed else self._open.deliver(answer.turn)
        if sampling is None:
            return
        self._tree.deliver(answer.turn)
        self._settle()
        digest = sampling.measure.digest
        self._delivered.add(digest)
        step = digest, reply_digest(answer.message)
        self._repeats = self._repeats + 1 if step == self._last_step else 1
        self._last_step = step
        self._result.changed()

    def undelivered(self, answer: Answer) -> None:
        """See `Session`."""
        if sampling := self._open.of_turn(answer.turn):
            self._open.give_up(sampling)

    async def count_tokens(self, call: ModelCall) -> int:
        """See `Session`. Estimated if the server does not count."""
        measure = await self._measured(call)
        count = getattr(self._chat, "count_tokens", None)
        counted: int | None = None
        if count is not None and measure.size_bytes <= CALL_MAX_BYTES:
            counted = await count(call.messages, call.tools)
        return max(1, measure.size_bytes // _BYTES_PER_TOKEN) if counted is None else counted

    def rejected(self, method: str, path: str, status: int) -> None:
        """See `Session`."""
        self.account.reject(method, path, status)

    def broken(self, error: Exception) -> None:
        """See `Session`."""
        self.fail(error)

    # --- the worker's side -------------------------------------------------------------

    def stop(self, reason: StopReason) -> None:
        """Refuse all further calls because of a limit, unless the attempt has ended already."""
        if not self.ended.is_set():
            self.stop_reason = reason
            self.ended.set()

    def fail(self, error: Exception) -> None:
        """End the attempt: it cannot be measured. Only a bug overrides a limit that came first."""
        if self.stop_reason and isinstance(error, TrajectoryFailure):
            return
        if self.failure is None:
            self.failure = error
            self.stop_reason = None
            self.ended.set()

    def seal(self) -> None:
        """From now on no call is made and no reply recorded or delivered."""
        self._sealed = True
        self._open.cancel()

    async def close(self) -> None:
        """Seal it and wait for the end of its calls. Idempotent."""
        self.seal()
        await self._open.close()

    # --- one call ----------------------------------------------------------------------

    async def _measured(self, call: ModelCall) -> Measure:
        """The measure of a request that may be served. Raises Refused."""
        self._require_open()
        self.asked += 1
        most = max(REQUESTS_AT_LEAST, REQUESTS_PER_TURN * self._budget.limits.max_turns)
        if self.asked > most:
            self.stop("max_turns")
        measure = await measured(call)
        self._require_open()
        return measure

    async def _begun(self, call: ModelCall, measure: Measure) -> Sampling:
        """The call itself, or meanwhile an equal one, once there is a place for it.

        Whoever goes away before that leaves nothing behind: calls that go on without their client
        hold their text, and there are no more of them than places.
        """
        await self._places.acquire()
        try:
            self._require_open()
            if claimed := self._open.claim(measure):
                self._places.release()
                return claimed
            if call.retry_count > 0 and measure.digest in self._delivered:
                self.account.event(event="retry_after_delivery", retry_count=call.retry_count)
            sampling = self._open.begin(measure, self._sample(call, measure))
        except Refused:
            self._places.release()
            raise
        sampling.task.add_done_callback(lambda _: self._places.release())
        return sampling

    async def _sample(self, call: ModelCall, measure: Measure) -> Answer:
        try:
            return await self._tried(call, measure)
        except Refused:
            raise
        except LimitReached as limit:
            self.stop(limit.reason)
            raise self._stopped() from None
        except ContextLengthExceeded as error:
            self.account.events(error.events)
            raise self._too_long(str(error)) from None
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker raises it
            self.account.events(getattr(error, "events", ()))
            if self.delivered_replies and _refuses_the_request(error) and await self._works():
                # The server answers this program otherwise: it is the call that is wrong.
                raise self.account.refusal("bad_call", str(error)) from None
            self.fail(error)
            raise self.account.refusal("upstream", "the model server failed") from None

    async def _tried(self, call: ModelCall, measure: Measure) -> Answer:
        """The reply. Raises Refused if the call is at fault; what `answered` raises."""
        try:
            return await answered(lambda: self._made(call, measure), self._still_works)
        except CallAtFault as error:
            self._faulty_calls += 1
            if self._faulty_calls >= MAX_FAULTY_CALLS:
                self.stop("format_errors")
            raise self.account.refusal("bad_call", str(error)) from None

    async def _still_works(self, error: TrajectoryFailure) -> bool:
        """Whether to try once more: the server has failed, and answers the first call again."""
        works = not _refuses_the_request(error) and await self._works()
        if works:
            self.account.events(error.events)
        return works

    async def _works(self) -> bool:
        """Whether the server answers the first call once more."""
        if self._first is None or self.ended.is_set():
            return False
        return await answers_again(self._chat, *self._first, self._budget)

    async def _made(self, call: ModelCall, measure: Measure) -> Answer:
        try:
            heard = await asyncio.to_thread(understood, call) if measure.is_long else None
            place = self._tree.place(call, heard)
        except Unplaceable as error:
            raise self.account.refusal("bad_call", str(error)) from None
        new_bytes = sum(map(_text_bytes, place.new_messages))
        if self._kept_bytes + new_bytes > KEPT_MAX_BYTES:
            raise self._too_long(f"all conversations together exceed {KEPT_MAX_BYTES} bytes")
        cap = call.max_tokens if call.max_tokens and call.max_tokens > 0 else None
        if cap is not None and self._refused_cap is not None and cap >= self._refused_cap:
            cap = None
        began_s = time.monotonic() - self._began
        for wanted in (cap, None):
            # A reply without the cap may be longer: it takes more of what is left for all calls.
            side = place.branch == "side"
            allowed = self._allowance.call(wanted, side=side, rival_turns=place.rival_turns)
            async with allowed as left:
                self._require_open()
                reply = await self._reply(call, place, left, wanted)
                self._require_open()
                if reply is not None:
                    self._refused_cap = cap if wanted != cap else self._refused_cap
                    return self._record(call, place, reply, new_bytes, began_s)
        raise AssertionError("without a cap there is a reply, or an error")

    async def _reply(
        self, call: ModelCall, place: Placement, left: int | None, cap: int | None
    ) -> Reply | None:
        """Sample; None if the server refuses a cap that only the program wants."""
        own = self._budget.reply_cap(left)
        try:
            return await self._completed(call, place, self._budget.capped(own, cap))
        except TrajectoryFailure as error:
            binds = cap is not None and (own is None or cap < own)
            if not binds or not _refuses_the_request(error):
                raise
            self.account.events(error.events)
        return None

    async def _completed(
        self, call: ModelCall, place: Placement, sampling: Mapping[str, Any]
    ) -> Reply:
        while True:
            deadline, began = self._budget.deadline, time.monotonic()
            try:
                reply = await ask(
                    self._chat,
                    place.messages,
                    call.tools,
                    sampling,
                    deadline,
                    anchor=place.anchor,
                    timeline=self._result.timeline,
                )
            except TimeoutError:
                # Meanwhile other calls may have waited, which moves the deadline for all.
                if deadline == self._budget.deadline or time.monotonic() >= self._budget.deadline:
                    raise LimitReached("time_limit") from None
                continue
            except TrajectoryFailure:
                self._allowance.exclude(time.monotonic() - began)
                raise
            self._allowance.exclude(reply.waited_s)
            return reply

    def _record(
        self, call: ModelCall, place: Placement, reply: Reply, new_bytes: int, began_s: float
    ) -> Answer:
        self._first = self._first or (place.messages, call.tools)
        call = replace(call, events=self.account.new(call.events))
        reply = replace(reply, events=self.account.fitting(reply.events))
        turn = self._tree.add(place, call, reply, began_s)
        self._kept_bytes += new_bytes + _text_bytes(reply.message)
        calls = reply.message.tool_calls
        self._tool_calls[turn] = len(calls), sum(fits(each, call.tools) for each in calls)
        self._settle()
        self._context_refusals, self.context_was_refused = 0, False
        self._result.changed()
        reason = reply.turn.finish_reason or "stop"
        if reply.message.tool_calls and reason != "length":
            reason = "tool_calls"
        return Answer(turn, reply.message, reason, reply.turn.usage)

    def _settle(self) -> None:
        """Count calls of replies that the program has by now, or shows to have; wait for none."""
        for turn in [*self._tool_calls]:
            call = self._result.turns[turn].call
            if call is not None and call.status == "delivered":
                if (sampling := self._open.deliver(turn)) is not None:
                    self._delivered.add(sampling.measure.digest)
                attempted, valid = self._tool_calls.pop(turn)
                self._result.attempted += attempted
                self._result.schema_valid += valid

    # --- refusals ----------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._sealed:
            raise self.account.refusal("closed", "the attempt is over")
        if self.ended.is_set():
            raise self._stopped()

    def _stopped(self) -> Refused:
        why = self.stop_reason or "the model server failed"
        return self.account.refusal("stopped", f"trajectory stopped: {why}")

    def _too_long(self, message: str) -> Refused:
        self._context_refusals += 1
        self.context_was_refused = True
        self.account.event(event="context_length", message=message[:500])
        if self._context_refusals >= MAX_CONTEXT_REFUSALS:
            self.stop("context_length")
        return self.account.refusal("context_length", message)


def _text_bytes(message: Message) -> int:
    """Bytes of memory, roughly, that a message takes."""
    parts = [message.content, message.reasoning]
    for call in message.tool_calls:
        parts += [call.function.name, call.function.arguments]
    objects = _MESSAGE_BYTES + _CALL_BYTES * len(message.tool_calls)
    return objects + sum(len(part) for part in parts if part)


def _refuses_the_request(error: Exception) -> bool:
    """Whether the server found fault with the request itself, e.g. a tool's schema or a cap."""
    status = getattr(error.__cause__, "status_code", None)
    return isinstance(error, TrajectoryFailure) and status in (400, 413, 422)


class _Account:
    """Events go to `result`, in order; counts stay here."""

    def __init__(self, result: AgentResult) -> None:
        self.other_requests: Counter[str] = Counter()
        """Requests that were no model call: method, path and status -> number."""
        self.refused: Counter[str] = Counter()
        """Refused calls by kind."""
        self._result = result
        self._seen: set[bytes] = set()

    def reject(self, method: str, path: str, status: int) -> None:
        """Count a request that was no model call."""
        name = f"{method[:10]} {path[:200]} {status}"
        if name not in self.other_requests and len(self.other_requests) >= MAX_OTHER_REQUESTS:
            name = "others"
        self.other_requests[name] += 1

    def refusal(self, kind: RefusalKind, message: str) -> Refused:
        """Count a refusal, and return it."""
        self.refused[kind] += 1
        return Refused(kind, message[:1000])

    def new(self, events: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        """Those of a call's events that no earlier call had, as many as the record has room for."""
        found = []
        for event in events:
            text = json.dumps(event, sort_keys=True, default=str)
            name = blake2b(text.encode(errors="replace"), digest_size=16).digest()
            if name not in self._seen and len(self._seen) < _MAX_EVENTS:
                self._seen.add(name)
                found.append(event)
        return self.fitting(found)

    def fitting(self, events: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        """As many of `events` as the record has room for."""
        return tuple(events[: max(0, _MAX_EVENTS - len(self._result.events))])

    def events(self, events: Sequence[Mapping[str, Any]], turn: int | None = None) -> None:
        """Record events of a turn; None = of the next one."""
        for event in events:
            self.event(turn, **event)

    def event(self, turn: int | None = None, **event: Any) -> None:
        """Record one event, unless there are too many."""
        events, now = self._result.events, len(self._result.turns)
        if len(events) < _MAX_EVENTS:
            events.append({**event, "turn": now if turn is None else turn})
        elif len(events) == _MAX_EVENTS:
            events.append({"turn": now, "event": "events_left_out"})


def fits(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of `tools`, OpenAI schemas, has the call's name and takes its arguments."""
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and function.get("name") == call.function.name:
            return _takes(function.get("parameters"), call.function.arguments)
    return False


def _takes(schema: Any, text: str) -> bool:
    if len(text) > _READ_CHARS:
        return False
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return False
    if not isinstance(arguments, dict):
        return False
    if not isinstance(schema, Mapping):
        return True
    known = schema.get("properties")
    properties = known if isinstance(known, Mapping) else {}
    required = schema.get("required")
    if isinstance(required, list) and not all(
        isinstance(name, str) and name in arguments for name in required
    ):
        return False
    if schema.get("additionalProperties") is False and not arguments.keys() <= properties.keys():
        return False
    return all(_is_of_type(value, properties.get(name)) for name, value in arguments.items())


def _is_of_type(value: Any, schema: Any) -> bool:
    wanted = schema.get("type") if isinstance(schema, Mapping) else None
    names = wanted if isinstance(wanted, list) else [wanted]
    types = [_TYPES.get(name) for name in names if isinstance(name, str)]
    if not types or None in types:
        return True
    if isinstance(value, bool) and "boolean" not in names:
        return False
    return isinstance(value, tuple(kind for each in types if each for kind in each))
