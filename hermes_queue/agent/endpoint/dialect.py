"""Tools and tool calls: as fields of the API, or as text of the conversation.

Native: the server's chat template shows the tools and the server parses the calls; if a parser
is named, it parses calls that the server left in the text. Prompted: for templates that drop
`tools`. Tools and results are written into the conversation in the Hermes format, and the reply
is parsed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

from hermes_queue.agent.parsers import ToolCallParser, load_parser
from hermes_queue.agent.tokens.servers.base import clean
from hermes_queue.errors import ConfigurationError, ModelConfigError
from hermes_queue.models import FunctionCall, Message, ToolCall

logger = logging.getLogger(__name__)

PREAMBLE = """\
# Tools

You can call functions. Each line between the tags is the JSON schema of one:
<tools>
{tools}
</tools>

To call one, write a JSON object with its name and its arguments between these tags:
<tool_call>
{{"name": "NAME", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>
You may call several, each between tags of its own. Then end your message: the results are sent \
to you in the same order, each between <tool_response> and </tool_response>."""
"""End of the system message in prompted mode."""

_MARKS = (
    "<tool_call>",
    "<function=",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<|tool_calls_section_begin|>",
    "<minimax:tool_call>",
    "<｜tool▁calls▁begin｜>",  # noqa: RUF001 - DeepSeek's
)
"""Texts that begin a tool call which a server has left in the text."""

Written = tuple[list[str], str]
"""Ids of the calls in a reply, and its text."""

_RAW_KEPT = 500
"""Characters of an unreadable call in its event; the message has all of it."""


class ToolDialect:
    """One trajectory's format of tools and calls."""

    def __init__(self, *, prompted: bool = False, parser: str | None = None) -> None:
        """Load the parser, in prompted mode `hermes` unless named. Raises ModelConfigError."""
        self.prompted = prompted
        """Whether requests contain the tools as text instead of in `tools`."""
        name = parser or ("hermes" if prompted else None)
        try:
            self._parser: ToolCallParser | None = load_parser(name) if name else None
        except ConfigurationError as error:
            raise ModelConfigError(f"agent openai: {error}") from error
        self._written: dict[tuple[str, ...], tuple[Message | None, str]] = {}
        """By the ids of its calls: a reply and its text; no reply if an earlier client had it."""
        self._unreported: list[Written] = []

    def outgoing(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> Sequence[Message]:
        """The conversation to send; in prompted mode without tool calls and tool roles."""
        if not self.prompted or not tools:
            return messages
        sent = list(messages)
        preamble = PREAMBLE.format(tools="\n".join(json.dumps(tool) for tool in tools))
        if sent and sent[0].role == "system":
            text = f"{sent[0].content}\n\n{preamble}" if sent[0].content else preamble
            sent[0] = sent[0].model_copy(update={"content": text})
        else:
            sent.insert(0, Message(role="system", content=preamble))
        return _as_text(sent, self._text_of)

    def incoming(
        self,
        message: Message,
        tools: Sequence[Mapping[str, Any]],
        *,
        turn: int,
        finish_reason: str | None,
    ) -> tuple[Message, list[dict[str, Any]]]:
        """The reply with the calls found in its text, and events for the unreadable ones.

        Unreadable calls remain calls, which the toolbox refuses with an explanation. A call that
        was cut off by the token limit remains text, so that the loop ends as for any such reply.
        """
        text = message.content
        if message.tool_calls or not text or not tools:
            return message, []
        if self._parser is None:
            return message, _unparsed(text)
        parsed = self._parser.parse(text, tools, reasoning=message.reasoning is None)
        calls = [c for c in parsed.calls if finish_reason != "length" or c.status != "unclosed"]
        content = parsed.content
        if len(calls) < len(parsed.calls):
            cut = "".join(text[slice(*c.span)] for c in parsed.calls if c not in calls)
            content = f"{content}\n{cut}" if content else cut
        # Without lone surrogates: JSON can hold them as escapes, records cannot.
        functions = [
            FunctionCall(name=clean(call.name or ""), arguments=clean(call.arguments))
            for call in calls
        ]
        made = tuple(ToolCall(id=f"call_{turn}_{i}", function=f) for i, f in enumerate(functions))
        events = [
            {"event": "tool_call_unreadable", "call": mine.id, "status": call.status}
            | {"raw": call.raw[:_RAW_KEPT]}
            for call, mine in zip(calls, made, strict=True)
            if call.status != "ok"
        ]
        update = {
            "content": content,
            "tool_calls": made,
            "reasoning": message.reasoning or parsed.reasoning,
        }
        reply = message.model_copy(update=update)
        if made:
            self._written[tuple(call.id for call in made)] = reply, text
            if self.prompted:
                self._unreported.append(([call.id for call in made], text))
        return reply, events

    def newly_written(self) -> list[Written]:
        """Replies with calls since the last call of this, whose own text is sent again."""
        written, self._unreported = self._unreported, []
        return written

    def remember(self, written: Sequence[Any]) -> None:
        """Know such replies of an earlier client."""
        for each in written:
            match each:
                case [[*ids], str(text)]:
                    self._written[tuple(map(str, ids))] = None, text

    def _text_of(self, message: Message) -> str:
        """Text of an assistant message with calls: the model's own if it came from this client.

        Programs send replies back with changes; then the model is to see what they sent.
        """
        known = self._written.get(tuple(call.id for call in message.tool_calls))
        if known is not None and (known[0] is None or _says_the_same(message, known[0])):
            return known[1]
        calls = [
            f'<tool_call>\n{{"name": {json.dumps(call.function.name)}, '
            f'"arguments": {call.function.arguments or "{}"}}}\n</tool_call>'
            for call in message.tool_calls
        ]
        return "\n".join([message.content, *calls] if message.content else calls)


def _says_the_same(one: Message, other: Message) -> bool:
    if one is other:
        return True
    texts = [(message.content or "").strip() for message in (one, other)]
    calls = [
        [(call.function.name, _value(call.function.arguments)) for call in message.tool_calls]
        for message in (one, other)
    ]
    return texts[0] == texts[1] and calls[0] == calls[1]


def _value(arguments: str) -> str:
    """Arguments without differences in blanks and order."""
    try:
        return json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _unparsed(text: str) -> list[dict[str, Any]]:
    """An event if a reply seems to contain a call and there is no parser."""
    mark = next((mark for mark in _MARKS if mark in text), None)
    if mark is None:
        return []
    _warn_of_unparsed(mark)
    return [{"event": "tool_call_unparsed", "mark": mark}]


@cache
def _warn_of_unparsed(mark: str) -> None:
    """Warn once per process and mark; the events of each trajectory record every occurrence."""
    logger.warning(
        "the server leaves tool calls in the text (%s): start it with a tool-call parser "
        "(vLLM, SGLang: --tool-call-parser), or name one with --agent-param parser=NAME",
        mark,
        extra={"action": "tool_call_unparsed"},
    )


def _as_text(messages: Sequence[Message], text_of: Callable[[Message], str]) -> list[Message]:
    """Write calls as assistant text, and the results of one turn as one user message."""
    sent: list[Message] = []
    for are_results, run in groupby(messages, lambda message: message.role == "tool"):
        if are_results:
            results = [f"<tool_response>\n{m.content or ''}\n</tool_response>" for m in run]
            sent.append(Message(role="user", content="\n".join(results)))
            continue
        for message in run:
            update = {"content": text_of(message), "tool_calls": ()} if message.tool_calls else {}
            sent.append(message.model_copy(update=update))
    return sent
