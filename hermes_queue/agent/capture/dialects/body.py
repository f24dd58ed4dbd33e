"""Reads a JSON body that a hostile program wrote. Raises nothing but `BadCall`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from hermes_queue.agent.capture.dialects.base import BadCall
from hermes_queue.agent.tokens.servers.base import clean
from hermes_queue.wire.parameters import COUNT_MAX, INTEGER_MAX, INTEGER_MIN

VALUES_MAX = 1_000_000
"""Values in a body. A body of brackets and commas alone would need a hundred times its size."""
DEPTH_MAX = 64
"""Nesting of what is passed on as it is: the parameters of tools."""
SCHEMA_MAX_VALUES, TOOL_TEXT_MAX_CHARS = 10_000, 1 << 19
"""Of one tool. It is written in one piece, and nothing else in the process runs meanwhile."""
NAME_MAX_CHARS = 256
"""Of models, tools and ids."""
_TEXT = ("text", "input_text", "output_text")
"""Types of content parts that are text."""


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body in UTF-8. The last one of equal keys counts."""
    if body.count(b",") + body.count(b"[") + body.count(b"{") > VALUES_MAX:
        raise BadCall("", f"the body has more than {VALUES_MAX:,} values: send a smaller one")
    try:
        found = read_json(body.decode())
    except RecursionError:
        raise BadCall("", "the body is nested too deep: make it flatter") from None
    except ValueError as error:  # UnicodeDecodeError is one
        raise BadCall("", f"the body is not JSON in UTF-8: {error}"[:300]) from None
    if not isinstance(found, dict):
        raise BadCall("", f"the body is a JSON {_kind(found)}: send an object")
    return found


def read_json(text: str) -> Any:
    """The value, whose numbers every reader can hold. Raises also ValueError and RecursionError."""
    return json.loads(text, parse_constant=_refuse, parse_int=_integer, parse_float=_number)


def _refuse(name: str) -> NoReturn:
    raise BadCall("", f"the body has the number {name}, which JSON does not know")


def _integer(digits: str) -> int:
    # Before the conversion, which takes quadratic time.
    if len(digits) <= 20 and INTEGER_MIN <= (number := int(digits)) <= INTEGER_MAX:
        return number
    raise BadCall("", f"the body has the integer {digits[:20]}...: at most 64 bits are taken")


def _number(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise BadCall("", f"the body has the number {digits[:20]}, which no double can hold")
    return number


def _kind(value: Any) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def wrong(place: str, value: Any, wanted: str) -> BadCall:
    """The error for a value of another type."""
    return BadCall(place, f"is a JSON {_kind(value)}: send {wanted}")


def tidy(text: str) -> str:
    """The text with lone surrogates replaced: they are valid in JSON but not in UTF-8."""
    return text if text.isascii() else clean(text)


def objects(value: Any, place: str, most: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of a list, each with its place."""
    if not isinstance(value, list):
        raise wrong(place, value, "a list")
    if len(value) > most:
        raise BadCall(place, f"has {len(value):,} entries: at most {most:,} are taken")
    for index, each in enumerate(value):
        if not isinstance(each, dict):
            raise wrong(f"{place}[{index}]", each, "an object")
        yield f"{place}[{index}]", each


def name_of(value: Any, place: str) -> str:
    """A name or id: a text that is not empty."""
    if not isinstance(value, str):
        raise wrong(place, value, "a text")
    if not 0 < len(value) <= NAME_MAX_CHARS:
        raise BadCall(
            place, f"has {len(value):,} characters: 1 to {NAME_MAX_CHARS} are taken for a name"
        )
    return tidy(value)


def optional_name(body: Mapping[str, Any], key: str) -> str | None:
    """A name that may be missing or null."""
    value = body.get(key)
    return None if value is None else name_of(value, key)


def optional_string(value: Any, place: str) -> str:
    """A text; "" if it is missing or null."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise wrong(place, value, "a text")
    return tidy(value)


def flag(body: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """A boolean that may be missing or null."""
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(key, value, "true or false")
    return value


def optional_count(body: Mapping[str, Any], key: str) -> int | None:
    """A number of at least 1 that may be missing or null."""
    value = body.get(key)
    if value is None:
        return None
    if type(value) is not int:
        raise wrong(key, value, "a whole number")
    if not 1 <= value <= COUNT_MAX:
        raise BadCall(key, f"is {value}: send a number of at least 1")
    return value


def text_of(
    value: Any,
    place: str,
    between: str = "\n",
    other: Callable[[str, Mapping[str, Any]], bool] | None = None,
) -> str:
    """A text, or the joined texts of a list of parts; "" if it is missing or null.

    `other` is asked about each part that is no text: True if it is to be passed over.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return tidy(value)
    if not isinstance(value, list):
        raise wrong(place, value, "a text or a list of parts")
    found = []
    for where, part in objects(value, place, VALUES_MAX):
        if part.get("type", "text") in _TEXT:
            found.append(optional_string(part.get("text"), f"{where}.text"))
        elif other is None or not other(where, part):
            raise not_text(where, part)
    return between.join(found)


def not_text(place: str, part: Mapping[str, Any]) -> BadCall:
    """The error for a part that the model cannot be shown."""
    kind = part.get("type")
    kind = kind[:60] if isinstance(kind, str) else _kind(kind)
    return BadCall(f"{place}.type", f"{tidy(kind)!r} is not offered: the model reads text alone")


def bounded(value: Any, place: str, values: int = VALUES_MAX, depth: int = DEPTH_MAX) -> int:
    """Check depth and size of what is passed on as it is. Returns how many of `values` are left."""
    if not isinstance(value, dict | list):
        return values
    if not depth:
        raise BadCall(place, f"is nested deeper than {DEPTH_MAX}: make it flatter")
    values -= len(value)
    if values < 0:
        raise BadCall(place, "has too many values: make it smaller")
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            values = bounded(each, place, values, depth - 1)
    return values


def schema(value: Any, place: str) -> dict[str, Any]:
    """A JSON Schema that a server can take, and that is written in no time."""
    if not isinstance(value, dict):
        raise wrong(place, value, "a JSON Schema")
    bounded(value, place, SCHEMA_MAX_VALUES)
    text = short(json.dumps(value, ensure_ascii=False), place)
    if tidy(text) != text:
        raise BadCall(place, "has half of a surrogate pair: send whole characters")
    return value


def short(text: str, place: str) -> str:
    """A text of a tool."""
    if len(text) > TOOL_TEXT_MAX_CHARS:
        most = f"{TOOL_TEXT_MAX_CHARS:,} are taken of a tool"
        raise BadCall(place, f"has {len(text):,} characters: at most {most}")
    return text
