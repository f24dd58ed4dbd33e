"""Spans, and the names of attributes that OpenTelemetry has conventions for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

AttributeValue = str | bool | int | float | Sequence[str]

SpanKind = Literal["internal", "server", "client", "producer", "consumer"]

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
"""The conventions that the names below are from. Those for generative AI are in development."""

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
CONVERSATION = "gen_ai.conversation.id"
AGENT_NAME = "gen_ai.agent.name"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
EVALUATION = "gen_ai.evaluation.result"
EVALUATION_NAME = "gen_ai.evaluation.name"
EVALUATION_SCORE = "gen_ai.evaluation.score.value"
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"

CONTENTS = frozenset({INPUT_MESSAGES, OUTPUT_MESSAGES, TOOL_ARGUMENTS, TOOL_RESULT})
"""What a model or an environment wrote."""

OWN = "hermes_queue."
"""Prefix of all other attributes."""


@dataclass(slots=True)
class SpanEvent:
    """Something that happened in a span, in Unix nanoseconds."""

    name: str
    at_ns: int
    attributes: dict[str, AttributeValue] = field(default_factory=dict)


@dataclass(slots=True)
class Link:
    """Another span that a span has to do with."""

    trace_id: bytes
    span_id: bytes


@dataclass(slots=True)
class TraceSpan:
    """One span; times in Unix nanoseconds."""

    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    begins_ns: int
    ends_ns: int
    kind: SpanKind = "internal"
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    failed: bool = False
    message: str = ""
    """Why it failed. May hold what a model or an environment wrote."""
    events: list[SpanEvent] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    more_links: int = 0
    """Links that it would have, too."""
