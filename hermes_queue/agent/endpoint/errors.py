"""Classification of an endpoint's errors: retry, wait, or have a person fix it.

Most of these errors have no standard code; each rule names the server that it is for. Rules of a
server of token mode are in its module of `hermes_queue.agent.tokens.servers`.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING

from hermes_queue.agent.endpoint.limiter import Permit
from hermes_queue.agent.tokens.servers.base import MalformedReply, Server
from hermes_queue.errors import (
    ContextLengthExceeded,
    ModelConfigError,
    ModelError,
    TrajectoryFailure,
    printable,
)

if TYPE_CHECKING:
    from openai import APIStatusError

BACKOFF_S = 0.5
"""Wait before the second try. It doubles up to `BACKOFF_MAX_S`, minus up to a quarter of jitter."""
BACKOFF_MAX_S = 8.0
PAUSE_S = 1.0
"""Wait between two tries at a paused endpoint that does not say how long."""

PAUSE_HEADERS = ("x-agl-paused",)
"""Headers that, with 429 or 503, mean that no request is served for now, e.g. while weights are
updated. The name is that of agent-lightning's proxy."""

_CONTEXT_PHRASES = (
    "maximum context length",  # OpenAI
    "context_length_exceeded",
    "exceeds the available context",  # llama.cpp
    "prompt is too long",
)
_CAP = re.compile(r"\bmax_(?:completion_)?tokens\b\W*(?:is )?too large")
"""vLLM, whose `param` is null before version 0.11 and is dropped by some proxies."""
_HISTORY = re.compile(r"\b(?:messages|tool_calls?)\b")
_TRANSIENT = frozenset({408, 409, 425, 429})


def classify(
    error: Exception, servers: Mapping[str, Server], *, first_turn: bool
) -> TrajectoryFailure | None:
    """The failure for `error`, None = retry. Raises an `error` that is not of an endpoint."""
    import openai

    if isinstance(error, openai.APIConnectionError | MalformedReply):
        return None
    if isinstance(error, TrajectoryFailure):
        return error
    if not isinstance(error, openai.APIStatusError):
        raise error
    if _is_overflow(error, servers, first_turn=first_turn):
        return ContextLengthExceeded(describe(error))
    if error.status_code == 429 and error.code == "insufficient_quota":
        return ModelConfigError(describe(error))
    if error.status_code in _TRANSIENT or error.status_code >= 500:
        return None
    if _is_about_history(error, first_turn=first_turn):
        return ModelError(describe(error))
    if 300 <= error.status_code < 400:
        place = str(_headers(error).get("location"))[:200]
        return ModelConfigError(
            f"HTTP {error.status_code}: the endpoint redirects to {place}, which is not followed; "
            "name the endpoint that answers itself"
        )
    return ModelConfigError(describe(error))


def _is_overflow(error: APIStatusError, servers: Mapping[str, Server], *, first_turn: bool) -> bool:
    """Whether the conversation is too long; there is no standard code for it.

    A `max_tokens` that was too large from the first turn on is a mistake in the job. If it
    fitted at first, the conversation has grown.
    """
    if error.status_code not in (400, 413):
        return error.code == "context_length_exceeded"
    text = f"{error.message} {error.body}".lower()
    about_cap = error.param in ("max_tokens", "max_completion_tokens") or _CAP.search(text)
    if about_cap and first_turn:
        return False
    phrases = chain(_CONTEXT_PHRASES, *(server.too_long for server in servers.values()))
    return error.status_code == 413 or any(phrase in text for phrase in phrases)


def _is_about_history(error: APIStatusError, *, first_turn: bool) -> bool:
    """Whether the server refuses the conversation although it accepted its beginning.

    Then key, model and parameters are right, and the model's own replies are the reason: no useful
    measurement, and no reason to pause a run.
    """
    if first_turn or error.status_code not in (400, 422):
        return False
    return _HISTORY.search(f"{error.message} {error.body}") is not None


def delay_s(error: Exception, failures: int) -> float:
    """Seconds to wait after `failures` failed tries: the server's request, else our backoff."""
    requested_s = retry_after_s(error)
    if requested_s is not None:
        return requested_s
    backoff_s: float = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** (failures - 1))
    return backoff_s * random.uniform(0.75, 1.0)  # noqa: S311 - jitter, no secret


def retry_after_s(error: Exception) -> float | None:
    """Seconds that the server asks us to wait. A date is ignored, since clocks differ."""
    for name, unit_s in (
        ("retry-after-ms", 0.001),
        ("retry-after", 1.0),
        ("llm_provider-retry-after", 1.0),
    ):
        try:
            wait_s = float(_headers(error)[name]) * unit_s
        except (KeyError, ValueError):
            continue
        if math.isfinite(wait_s):
            return max(0.0, wait_s)
    return None


def is_pause(error: Exception) -> bool:
    """Whether the endpoint serves no requests for now, rather than refusing or failing this one."""
    return _status(error) in (429, 503) and any(name in _headers(error) for name in PAUSE_HEADERS)


def report(error: Exception, permit: Permit) -> None:
    """Tell the limiter if the endpoint takes no requests for now.

    A server that restarts or is overloaded says as little about its limit as one that is paused.
    """
    wait_s = retry_after_s(error)
    paused = is_pause(error) or (_status(error) == 503 and wait_s is not None)
    if paused or _status(error) == 429:
        permit.refused(wait_s, paused=paused)


def forbids_retry(error: Exception) -> bool:
    """Whether the server forbids a retry, whatever the status (OpenAI's own header)."""
    return _headers(error).get("x-should-retry") == "false"


def describe(error: BaseException | None) -> str:
    """One line for logs; of a failed connection the root cause, which the SDK calls a timeout."""
    import openai

    if isinstance(error, openai.APIConnectionError):
        while error.__cause__ is not None:
            error = error.__cause__
    text = str(error) or type(error).__name__
    return printable(f"{type(error).__name__}: {text}"[:1000])


def _status(error: Exception) -> int | None:
    import openai

    return error.status_code if isinstance(error, openai.APIStatusError) else None


def _headers(error: Exception) -> Mapping[str, str]:
    import openai

    return error.response.headers if isinstance(error, openai.APIStatusError) else {}
