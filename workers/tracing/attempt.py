"""The spans of one attempt: its stages, and the calls in them.

Names and attributes of calls are those of OpenTelemetry's conventions for generative AI. What a
model or an environment wrote is in them only if contents are exported, bounded and without secrets.
Secrets are replaced before a text is cut. The other way round, the cut could leave half of one,
which nothing recognises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hermes_queue.errors import TrajectoryFailure
from hermes_queue.models import Message, Turn
from hermes_queue.telemetry.otel import context
from hermes_queue.telemetry.otel import spans as names
from hermes_queue.telemetry.otel.context import SpanContext
from hermes_queue.telemetry.otel.spans import OWN, AttributeValue, SpanEvent, TraceSpan
from hermes_queue.telemetry.otel.timeline import Noted, StageNoted, Timeline
from hermes_queue.telemetry.scrubbing import scrub
from workers.draft import Draft

_UNKNOWN_TOOL = "(unknown)"
_PLAIN_ID = re.compile(r"[\w.:-]{1,128}\Z", re.ASCII)
_REQUEST = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "seed",
    "frequency_penalty",
    "presence_penalty",
)
"""Sampling parameters that have a name in the conventions."""

_MOST_MESSAGES = 32
"""Messages of one span, the newest."""


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt that has ended."""

    draft: Draft
    timeline: Timeline
    place: SpanContext
    """Of the trajectory's root span."""
    failure: TrajectoryFailure | None
    outcome: str
    ended_ns: int
    characters: int
    """Of each exported text; 0 = none is exported."""


def spans_of(attempt: EndedAttempt) -> Sequence[TraceSpan]:
    """All spans of the attempt, its own first."""
    return _Made(attempt).spans


class _Made:
    """The spans, as they are made."""

    def __init__(self, attempt: EndedAttempt) -> None:
        draft, self._timeline, self._place = attempt.draft, attempt.timeline, attempt.place
        self._draft, self._attempt = draft, attempt
        self._id = int.from_bytes(context.of_attempt(draft.job.trajectory_id, draft.epoch), "big")
        self._tools = set(map(_name_of, draft.tools))
        model = draft.job.agent.kind in ("openai", "command")
        self._provider = "openai" if model else f"hermes_queue.{draft.job.agent.kind}"
        self.spans: list[TraceSpan] = []
        self._own = self._attempt_span()
        self._queue()
        self._agents = [span for each in self._timeline.stages if (span := self._stage(each))]
        self._calls()

    def _add(
        self, name: str, began_ns: int, ended_ns: int, parent: bytes, **fields: Any
    ) -> TraceSpan:
        """Add a span; ids count up from that of the attempt, so that no two processes share one."""
        number = (self._id + len(self.spans)) % 2**64 or 1
        span_id = number.to_bytes(8, "big")
        span = TraceSpan(name, self._place.trace_id, span_id, parent, began_ns, ended_ns, **fields)
        self.spans.append(span)
        return span

    def _attempt_span(self) -> TraceSpan:
        draft, job, failure = self._draft, self._draft.job, self._attempt.failure
        attributes: dict[str, AttributeValue] = {
            f"{OWN}run_id": job.run_id,
            f"{OWN}group_id": job.group_id,
            f"{OWN}trajectory_id": job.trajectory_id,
            f"{OWN}sample_index": job.sample_index,
            f"{OWN}env": job.env,
            f"{OWN}instance_id": job.instance_id,
            f"{OWN}lane": job.lane,
            f"{OWN}attempt": draft.attempt,
            f"{OWN}epoch": draft.epoch,
            f"{OWN}outcome": self._attempt.outcome,
        }
        if draft.sandbox_id:
            attributes[f"{OWN}sandbox_id"] = draft.sandbox_id
        if self._timeline.not_noted:
            attributes[f"{OWN}calls_left_out"] = self._timeline.not_noted
        span = self._add(
            "attempt",
            self._timeline.began_ns,
            self._attempt.ended_ns,
            self._place.span_id,
            kind="consumer",
            attributes=attributes,
        )
        if failure is not None:
            self._fail(span, failure)
            span.attributes[names.ERROR_TYPE] = failure.kind
            span.attributes[f"{OWN}failure.stage"] = failure.stage or "load"
        return span

    def _queue(self) -> None:
        waited_s = self._draft.clock.stage_seconds.get("queue")
        if waited_s is not None:
            began_ns = self._timeline.began_ns
            self._add("queue", began_ns - round(waited_s * 1e9), began_ns, self._place.span_id)

    def _stage(self, noted: StageNoted) -> tuple[TraceSpan, StageNoted] | None:
        """Add the span of a stage; returns it with the stage if it is the agent's."""
        is_agent = noted.name == "agent"
        kind = self._draft.job.agent.kind
        span = self._add(
            f"invoke_agent {kind}" if is_agent else noted.name,
            self._timeline.at_ns(noted.began),
            self._timeline.at_ns(noted.ended),
            self._own.span_id,
            attributes=self._of_agent() if is_agent else {},
        )
        if noted.error is not None:
            self._fail(span, noted.error)
        verdict = self._draft.verdict
        if noted.name == "verify" and verdict is not None and verdict.score is not None:
            score: dict[str, AttributeValue] = {
                names.EVALUATION_NAME: "score",
                names.EVALUATION_SCORE: verdict.score,
            }
            span.events.append(SpanEvent(names.EVALUATION, span.ends_ns, score))
        return (span, noted) if is_agent else None

    def _of_agent(self) -> dict[str, AttributeValue]:
        draft = self._draft
        agent, usage = draft.agent, draft.agent.usage
        attributes: dict[str, AttributeValue] = {
            names.OPERATION: "invoke_agent",
            names.PROVIDER: self._provider,
            names.AGENT_NAME: draft.job.agent.kind,
            names.CONVERSATION: draft.job.trajectory_id,
            names.INPUT_TOKENS: usage.prompt_tokens,
            names.OUTPUT_TOKENS: usage.completion_tokens,
            f"{OWN}turns": len(agent.turns),
            f"{OWN}tool_calls.ok": agent.ok,
            f"{OWN}tool_calls.error": agent.error,
            f"{OWN}tool_calls.invalid": agent.attempted - agent.schema_valid,
        }
        if draft.job.agent.model:
            attributes[names.REQUEST_MODEL] = draft.job.agent.model
        if agent.stop_reason:
            attributes[f"{OWN}stop_reason"] = agent.stop_reason
        # Turns of an earlier worker, which this attempt goes on from, are spans of its own attempt.
        if draft.kept_agent_s:
            attributes[f"{OWN}continued_agent_s"] = draft.kept_agent_s
        return attributes

    def _calls(self) -> None:
        before: Sequence[Message] = ()
        for call in self._timeline.model_calls:
            span = self._model_call(call)
            if self._attempt.characters and call.asked is not None:
                messages, length = call.asked
                sent = messages[:length]
                self._show_messages(span, call, sent, _new_messages(sent, before))
                before = sent
        for call in self._timeline.tool_calls:
            self._tool_call(call)

    def _parent(self, call: Noted) -> bytes:
        """The agent's stage in which a call began; that of a judge is in none."""
        for span, stage in self._agents:
            if stage.began <= call.began <= stage.ended:
                return span.span_id
        return self._own.span_id

    def _call(self, name: str, call: Noted, **fields: Any) -> TraceSpan:
        at_ns = self._timeline.at_ns
        ended = call.ended or call.began
        return self._add(name, at_ns(call.began), at_ns(ended), self._parent(call), **fields)

    def _model_call(self, call: Noted) -> TraceSpan:
        model = call.model or self._draft.job.agent.model
        attributes: dict[str, AttributeValue] = {
            names.OPERATION: "chat",
            names.PROVIDER: "openai" if call.model else self._provider,
            names.CONVERSATION: self._draft.job.trajectory_id,
        }
        if model:
            attributes[names.REQUEST_MODEL] = model
        name = f"chat {model}" if model else "chat"
        kind = "client" if attributes[names.PROVIDER] == "openai" else "internal"
        span = self._call(name, call, kind=kind, attributes=attributes)
        if call.answer is not None:
            span.attributes |= _of_turn(call.answer.turn)
            if call.answer.waited_s:
                span.attributes[f"{OWN}waited_s"] = call.answer.waited_s
        if call.error is not None:
            self._fail(span, call.error)
        return span

    def _show_messages(
        self, span: TraceSpan, call: Noted, sent: Sequence[Message], news: Sequence[Message]
    ) -> None:
        characters = self._attempt.characters
        span.attributes[names.INPUT_MESSAGES] = _encoded(news, characters)
        span.attributes[f"{OWN}earlier_messages"] = len(sent) - min(len(news), _MOST_MESSAGES)
        if call.answer is not None:
            reason = call.answer.turn.finish_reason or "stop"
            shown = _encoded([call.answer.message], characters, reason)
            span.attributes[names.OUTPUT_MESSAGES] = shown

    def _tool_call(self, call: Noted) -> None:
        asked, outcome, characters = call.asked, call.answer, self._attempt.characters
        # A name that no tool has is the model's own text.
        name = asked.function.name if asked.function.name in self._tools else _UNKNOWN_TOOL
        attributes: dict[str, AttributeValue] = {
            names.OPERATION: "execute_tool",
            names.TOOL_NAME: name,
            names.TOOL_TYPE: "function",
        }
        if _PLAIN_ID.match(asked.id):
            attributes[names.TOOL_CALL_ID] = asked.id
        span = self._call(f"execute_tool {name}", call, attributes=attributes)
        if outcome is not None:
            span.attributes[f"{OWN}tool.schema_valid"] = outcome.schema_valid
            span.attributes[f"{OWN}tool.ok"] = outcome.ok
            if not outcome.schema_valid:
                span.failed, span.attributes[names.ERROR_TYPE] = True, "invalid_call"
        if call.error is not None:
            self._fail(span, call.error)
        if characters:
            arguments = _shortened(asked.function.arguments, characters)
            span.attributes[names.TOOL_ARGUMENTS] = arguments
            if outcome is not None:
                span.attributes[names.TOOL_RESULT] = _shortened(outcome.text, characters)

    def _fail(self, span: TraceSpan, error: BaseException) -> None:
        span.failed = True
        span.attributes[names.ERROR_TYPE] = type(error).__name__
        if self._attempt.characters:
            span.message = _shortened(str(error), self._attempt.characters)


def _name_of(schema: Mapping[str, Any]) -> str:
    """The name of a tool; a program's own schemas may have any form."""
    function = schema.get("function")
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""


def _of_turn(turn: Turn) -> dict[str, AttributeValue]:
    """What is known of a model's answer, beside its text."""
    usage = turn.usage
    attributes: dict[str, AttributeValue] = {
        names.INPUT_TOKENS: usage.prompt_tokens,
        names.OUTPUT_TOKENS: usage.completion_tokens,
    }
    if usage.cached_tokens:
        attributes[names.CACHED_TOKENS] = usage.cached_tokens
    if turn.finish_reason:
        attributes[names.FINISH_REASONS] = [turn.finish_reason]
    for name in _REQUEST:
        value = turn.sampling.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            attributes[f"gen_ai.request.{name}"] = value
    if turn.policy_version:
        attributes[f"{OWN}policy_version"] = turn.policy_version
    if turn.server:
        attributes |= _of_server(turn.server)
    return attributes


def _of_server(url: str) -> dict[str, AttributeValue]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return {}
    return {names.SERVER_ADDRESS: host, names.SERVER_PORT: port} if host else {}


def _shortened(text: str, characters: int) -> str:
    """`text` without secrets, cut to `characters`."""
    clean = scrub(text)
    if len(clean) <= characters:
        return clean
    return f"{clean[:characters]} [... {len(clean) - characters} characters left out]"


def _new_messages(sent: Sequence[Message], before: Sequence[Message]) -> Sequence[Message]:
    """Those of a conversation that the call before it had not been sent."""
    shared = 0
    for message, known in zip(sent, before, strict=False):
        if message is not known:
            break
        shared += 1
    return sent[shared:]


def _encoded(messages: Sequence[Message], characters: int, finish_reason: str = "") -> str:
    """Messages as JSON in the form of `gen_ai.input.messages` and `gen_ai.output.messages`."""
    shown = [_parts(message, characters) for message in messages[-_MOST_MESSAGES:]]
    if finish_reason:
        for each in shown:
            each["finish_reason"] = finish_reason
    return json.dumps(shown, ensure_ascii=False)


def _parts(message: Message, characters: int) -> dict[str, Any]:
    parts: list[Mapping[str, Any]] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "content": _shortened(message.reasoning, characters)})
    if message.role == "tool":
        result = _shortened(message.content or "", characters)
        name = _shortened(message.tool_call_id or "", characters)
        parts.append({"type": "tool_call_response", "id": name, "response": result})
    elif message.content:
        parts.append({"type": "text", "content": _shortened(message.content, characters)})
    for call in message.tool_calls:
        parts.append(
            {
                "type": "tool_call",
                "id": _shortened(call.id, characters),
                "name": _shortened(call.function.name, characters),
                "arguments": _shortened(call.function.arguments, characters),
            }
        )
    return {"role": message.role, "parts": parts}
