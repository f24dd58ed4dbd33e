"""Validation of the values in a server's JSON, none of which can be trusted to have its type.

Anything invalid raises `MalformedReply`, which the client treats like any other server fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from hermes_queue.models import Usage

ID_MAX = 2**31 - 1
"""Largest token id: records keep ids as int32."""
COUNT_MAX = 2**31 - 1
"""Largest token count or token index in one answer, so that sums stay exact in budgets and
costs."""
LARGE_BYTES = 1 << 20
"""Larger answers are parsed in a thread: their lists of ids take a while."""

T = TypeVar("T")


class MalformedReply(ValueError):
    """The server answered 200 with something other than a chat completion."""


async def read(parse: Callable[[bytes], T], answer: bytes) -> T:
    """`parse(answer)`, for a large answer in a thread. Raises the errors of `parse`."""
    if len(answer) <= LARGE_BYTES:
        return parse(answer)
    return await asyncio.to_thread(parse, answer)


def clean(text: str) -> str:
    """Replace lone surrogates, which are valid in JSON but not in UTF-8."""
    return text.encode(errors="replace").decode()


def read_ids(value: Any) -> tuple[int, ...] | None:
    """The token ids, or None if there are none.

    Raises:
        MalformedReply: the value is something else.
    """
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(n) is int for n in value):
        raise MalformedReply("token ids are not a list of integers")
    if value and not 0 <= min(value) <= max(value) <= ID_MAX:
        raise MalformedReply(f"a token id is not within 0 and {ID_MAX}")
    return tuple(value)


def read_count(value: Any, name: str) -> int:
    """A token count or token index; 0 if the value is None.

    Raises:
        MalformedReply: it is negative, too large, or not an integer.
    """
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise MalformedReply(f"{name} is {value!r:.60}, not within 0 and {COUNT_MAX}")
    return value


def read_usage(answer: Mapping[str, Any], cached: Any, prompt: int = 0) -> Usage:
    """The usage that a server reports; without a prompt count, `prompt` stands in.

    Raises:
        MalformedReply: one of the numbers is invalid.
    """
    return Usage(
        prompt_tokens=read_count(answer.get("prompt_tokens"), "prompt_tokens") or prompt,
        completion_tokens=read_count(answer.get("completion_tokens"), "completion_tokens"),
        cached_tokens=read_count(cached, "cached_tokens"),
    )


def finished(reason: str | None, given_up: Collection[str]) -> str | None:
    """Return `reason` if it is the regular end of a reply, not one of `given_up`.

    A reply that the server aborted does not show what the policy would have said, so it is
    neither a turn to train on nor the end of a trajectory.

    Raises:
        MalformedReply: the server aborted the request.
    """
    if reason in given_up:
        raise MalformedReply(f"the server aborted the request, finish_reason {reason!r}")
    return reason
