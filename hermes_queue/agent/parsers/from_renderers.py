"""Adapts parsers of the `renderers` library (extra `renderers`) to our protocol.

The library reads token ids and finds tags by id. Here each character is a token and each tag
that the library asks for is another one, so that text goes in and character positions come out.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hermes_queue.agent.parsers.base import (
    CallStatus,
    NotJson,
    ParsedCall,
    ParsedReply,
    Tools,
    read_object,
    split_reasoning,
)
from hermes_queue.errors import ConfigurationError

FAMILIES = {
    "deepseek_v3": ("deepseek-v3", "<｜tool▁calls▁begin｜>"),  # noqa: RUF001 - their tags
    "deepseek_v4": ("deepseek-v4", "<｜DSML｜"),  # noqa: RUF001
    "glm45": ("glm-4.5", "<tool_call>"),
    "glm47": ("glm-5", "<tool_call>"),
    "kimi_k2": ("kimi-k2", "<|tool_calls_section_begin|>"),
    "minimax_m2": ("minimax-m2", "<minimax:tool_call>"),
}
"""Name in vLLM -> (name in the library, text that begins a call)."""

MAX_CHARS = 100_000
"""Limit of a reply from its first call on. For some families the library copies its input at each
step, which takes minutes for longer text."""

_STATUS: dict[str, CallStatus] = {
    "ok": "ok",
    "invalid_json": "invalid_json",
    "unclosed_block": "unclosed",
    "missing_name": "missing_name",
    "malformed_structure": "malformed",
    "unknown_tool": "unknown_tool",
}
_TAG = re.compile(r"<[^<>\s]+>|｜[^<>\s]+｜")  # noqa: RUF001
_FIRST_TAG = 0x110000
"""Above every code point."""


class RenderersParser:
    """A parser of the library. Raises ConfigurationError: not installed, or incompatible."""

    def __init__(self, name: str) -> None:
        self.name = name
        family, self._opener = FAMILIES[name]
        self._tokenizer = _CharacterTokenizer()
        try:
            from renderers import config_from_name, create_renderer
        except ImportError as error:
            raise ConfigurationError(
                f"tool-call parser {name} needs the renderers library ({error}); install "
                "it with: pip install 'hermes-queue[renderers]'"
            ) from error
        try:
            config = config_from_name(family)
            if "enable_thinking" in type(config).model_fields:  # we have separated reasoning before
                config = type(config)(enable_thinking=False)
            self._renderer = create_renderer(self._tokenizer, config)
        except Exception as error:
            raise ConfigurationError(
                f"tool-call parser {name}: renderers cannot make it: {error}"
            ) from error

    def parse(self, text: str, tools: Tools = (), *, reasoning: bool = True) -> ParsedReply:
        """See `ToolCallParser.parse`."""
        thinking, begin = split_reasoning(text, self._opener) if reasoning else (None, 0)
        # Keep the library's input short, see `_CharacterTokenizer.decode`.
        start = max(begin, text.find(self._opener, begin))
        before = text[begin:start]
        try:
            if len(text) - start > MAX_CHARS:
                raise ValueError("too long")
            ids, ends = self._tokenizer.encode_with_ends(text[start:])
            parsed = self._renderer.parse_response(ids, tools=list(tools) or None)
        except Exception:  # noqa: BLE001 - its parsers promise nothing about hostile text
            span = (start, len(text))
            raw = text[start:]
            call = ParsedCall(None, raw, raw, "malformed", span)
            return ParsedReply((call,), before.strip() or None, thinking)
        calls = tuple(_converted(call, text, start, ends) for call in parsed.tool_calls)
        content = (before + parsed.content).strip() if calls else text[begin:]
        return ParsedReply(calls, content or None, thinking)


def _converted(call: Any, text: str, start: int, ends: list[int]) -> ParsedCall:
    """Convert a call of the library. Without a span it is located by its raw text."""
    status = _STATUS.get(str(call.status), "malformed")
    if call.token_span is not None:
        first, last = call.token_span
        span = (start + _position(ends, first), start + _position(ends, last))
    else:
        at = max(start, text.find(call.raw, start))
        span = (at, min(len(text), at + len(call.raw)))
    arguments = call.raw
    if status == "ok" and isinstance(call.arguments, dict):
        arguments = _as_written(call.raw, call.arguments)
    elif status == "ok":
        status = "invalid_arguments"
    elif status == "invalid_json" and isinstance(call.arguments, str):
        arguments = call.arguments or call.raw
    return ParsedCall(call.name, arguments, call.raw, status, span)


def _as_written(raw: str, arguments: dict[str, Any]) -> str:
    """The text of `arguments` in `raw`; formats other than JSON are converted to JSON."""
    at = raw.find("{")
    if at != -1:
        try:
            members, end = read_object(raw, at)
        except NotJson:
            members = {}
            end = at
        if end > at and {key: member.value for key, member in members.items()} == arguments:
            return raw[at:end]
    return json.dumps(arguments, ensure_ascii=False)


def _position(ends: list[int], token: int) -> int:
    """Offset of a token in the text."""
    return ends[token - 1] if token else 0


class _CharacterTokenizer:
    """The part of a tokenizer that the library needs."""

    unk_token_id = None
    name_or_path = ""

    def __init__(self) -> None:
        self._tags: list[str] = []
        self._ids: dict[str, int] = {}
        self._pattern: re.Pattern[str] | None = None
        self._decoded: tuple[list[int], str] = ([], "")
        """The last decoded ids and their text."""

    def convert_tokens_to_ids(self, token: str) -> int:
        """The id of a tag; any token that is asked for counts as a tag."""
        if token not in self._ids:
            self._ids[token] = _FIRST_TAG + len(self._tags)
            self._tags.append(token)
            tags = sorted(self._tags, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, tags)))
        return self._ids[token]

    @property
    def eos_token_id(self) -> int:
        """Id of a tag that occurs in no text."""
        return self.convert_tokens_to_ids("\0<eos>\0")

    def encode(self, text: str, **_: Any) -> list[int]:
        """The ids of a text; a text that is exactly a tag becomes one id."""
        if _TAG.fullmatch(text):
            self.convert_tokens_to_ids(text)
        return self.encode_with_ends(text)[0]

    def encode_with_ends(self, text: str) -> tuple[list[int], list[int]]:
        """The ids of a text, and the offset at which each ends."""
        ids: list[int] = []
        ends: list[int] = []
        at = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            ids += map(ord, text[at : match.start()])
            ends += range(at + 1, match.start() + 1)
            at = match.end()
            ids.append(self._ids[match.group()])
            ends.append(at)
        ids += map(ord, text[at:])
        ends += range(at + 1, len(text) + 1)
        return ids, ends

    def decode(self, ids: list[int] | int, **_: Any) -> str:
        """The text of ids.

        The library decodes [0:1], [0:2], [0:3] ... to find the end of a text tag, which would
        take time quadratic in the length of the calls. So the last text is cached and extended.
        """
        ids = [ids] if isinstance(ids, int) else ids
        known, text = self._decoded
        if not (len(ids) == len(known) + 1 and ids[:-1] == known):
            known, text = [], ""
        new = ids[len(known) :]
        text += "".join(self._tags[i - _FIRST_TAG] if i >= _FIRST_TAG else chr(i) for i in new)
        self._decoded = ids, text
        return text
