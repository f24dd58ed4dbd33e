"""Whether a reply's tool calls fit the tools that the program offered.

The tools come from a slot: a full validator would follow references and run patterns of unknown
cost. So names, required arguments and the types of arguments are looked at, and nothing deeper.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_queue.models import ToolCall

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
