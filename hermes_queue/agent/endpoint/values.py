"""Values of a server's JSON, checked: none of its fields can be trusted to have its type.

Whatever does not fit raises `MalformedReply`, which the client treats like any other server fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from hermes_queue.models import Usage

ID_MAX = 2**31 - 1
"""Records keep ids as int32."""
COUNT_MAX = 2**31 - 1
"""Of tokens in one answer, and of places among them: their sums are exact in budgets and prices."""
LARGE_BYTES = 1 << 20
"""Larger answers are read in a thread: their lists of ids take a while."""

T = TypeVar("T")


class MalformedReply(ValueError):
    """The server answered 200 with something that is no chat completion."""


async def read(parse: Callable[[bytes], T], answer: bytes) -> T:
    """What `parse` makes of an answer; of a large one in a thread. Raises what `parse` does."""
    if len(answer) <= LARGE_BYTES:
        return parse(answer)
    return await asyncio.to_thread(parse, answer)


def clean(text: str) -> str:
    """Lone surrogates can be written in JSON but not in UTF-8, where all of this will go."""
    return text.encode(errors="replace").decode()


def read_ids(value: Any) -> tuple[int, ...] | None:
    """Token ids, or None when there are none.

    Raises:
        MalformedReply: it is something else.
    """
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(n) is int for n in value):
        raise MalformedReply("token ids are not a list of integers")
    if value and not 0 <= min(value) <= max(value) <= ID_MAX:
        raise MalformedReply(f"a token id is not within 0 and {ID_MAX}")
    return tuple(value)


def read_count(value: Any, name: str) -> int:
    """A number of tokens, or a place among them; 0 where there is none.

    Raises:
        MalformedReply: it is negative, too large, or no integer.
    """
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise MalformedReply(f"{name} is {value!r:.60}, not within 0 and {COUNT_MAX}")
    return value


def read_usage(said: Mapping[str, Any], cached: Any, prompt: int = 0) -> Usage:
    """The usage that a server tells; of one that does not count the prompt, as long as `prompt`.

    Raises:
        MalformedReply: one of the numbers is none.
    """
    return Usage(
        prompt_tokens=read_count(said.get("prompt_tokens"), "prompt_tokens") or prompt,
        completion_tokens=read_count(said.get("completion_tokens"), "completion_tokens"),
        cached_tokens=read_count(cached, "cached_tokens"),
    )


def finished(reason: str | None, given_up: Collection[str]) -> str | None:
    """`reason`, unless it is one of `given_up`, with which a server ends a request itself.

    A reply that was given up says nothing of what the policy would have said, so that it is
    neither a turn to train on nor the end of a trajectory.

    Raises:
        MalformedReply: the server gave the request up.
    """
    if reason in given_up:
        raise MalformedReply(f"the server gave the request up, finish_reason {reason!r}")
    return reason
