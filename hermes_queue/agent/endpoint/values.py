"""Validation of the values in a server's JSON, none of which can be trusted to have its type.

Anything invalid raises `MalformedReply`, which the client treats like any other server fault.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from hermes_queue.models import Usage

ID_MAX = 2**31 - 1
"""Largest token id: records keep ids as int32."""
COUNT_MAX = 2**31 - 1
"""Largest token count or token index in one answer, so that sums stay exact in budgets and
costs."""
LARGE_BYTES = 1 << 20
"""Larger answers are parsed in a thread: their lists of ids take a while."""

P = ParamSpec("P")
T = TypeVar("T")


class MalformedReply(ValueError):
    """The server answered 200 with something other than a chat completion."""


def reader(parse: Callable[Concatenate[bytes, P], T]) -> Callable[Concatenate[bytes, P], T]:
    """Decorate a parser of answers: where it meets what it does not expect, `MalformedReply`."""

    @wraps(parse)
    def parse_strictly(answer: bytes, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return parse(answer, *args, **kwargs)
        except MalformedReply:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            start = answer[:200].decode(errors="replace")
            raise MalformedReply(f"{type(error).__name__}: {error}; body: {start!r}") from error

    return parse_strictly


async def read(parse: Callable[..., T], answer: bytes, *args: Any, **kwargs: Any) -> T:
    """`parse(answer, ...)`, for a large answer in a thread. Raises the errors of `parse`."""
    if len(answer) <= LARGE_BYTES:
        return parse(answer, *args, **kwargs)
    return await asyncio.to_thread(parse, answer, *args, **kwargs)


@reader
def json_object(answer: bytes) -> dict[str, Any]:
    """The JSON object in an answer. Raises MalformedReply."""
    data = json.loads(answer)
    if not isinstance(data, dict):
        raise MalformedReply(f"the body is a JSON {type(data).__name__}")
    return data


def clean(text: str) -> str:
    """Replace lone surrogates, which are valid in JSON but not in UTF-8."""
    return text.encode(errors="replace").decode()


def read_ids(value: Any) -> tuple[int, ...] | None:
    """The token ids, or None if there are none. Raises MalformedReply for anything else."""
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(n) is int for n in value):
        raise MalformedReply("token ids are not a list of integers")
    if value and not 0 <= min(value) <= max(value) <= ID_MAX:
        raise MalformedReply(f"a token id is not within 0 and {ID_MAX}")
    return tuple(value)


def read_count(value: Any, name: str) -> int:
    """A token count or token index; 0 for None. Raises MalformedReply for anything else."""
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise MalformedReply(f"{name} is {value!r:.60}, not within 0 and {COUNT_MAX}")
    return value


def read_usage(
    answer: Mapping[str, Any], cached: Any, prompt: int = 0, completion: int = 0
) -> Usage:
    """The usage in the object of an answer that holds `prompt_tokens` and `completion_tokens`.

    In OpenAI's API that is its `usage`; in any other object, nothing is found. Budgets and costs
    are counted from the result, so `prompt` and `completion` should stand in for missing counts.
    `cached` of the prompt's tokens were in the server's cache. Raises MalformedReply.
    """
    names = ("prompt_tokens", "completion_tokens")
    counted = [read_count(answer.get(name), name) for name in names]
    return Usage(
        prompt_tokens=counted[0] or prompt,
        completion_tokens=counted[1] or completion,
        cached_tokens=read_count(cached, "cached_tokens"),
    )


def finished(reason: str | None, given_up: Collection[str]) -> str | None:
    """Return `reason`, the regular end of a reply. Raises MalformedReply if the server gave up.

    A reply that was aborted does not show what the policy would have said, so it is neither a turn
    to train on nor the end of a trajectory.
    """
    if reason in given_up:
        raise MalformedReply(f"the server aborted the request, finish_reason {reason!r}")
    return reason
