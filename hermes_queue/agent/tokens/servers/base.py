"""The contract of a model server that takes and returns token ids, and readers of its answers.

Such a server renders a conversation to ids with the model's own template, and continues a list
of ids. Servers name these operations differently; this module defines common names.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar

from hermes_queue.agent.tokens.merge import round_float32
from hermes_queue.errors import ModelConfigError
from hermes_queue.models import Usage

HttpPost = Callable[[str, Mapping[str, Any]], Awaitable[bytes]]
"""POSTs a JSON body to a path below the server's root; returns the body of a 200."""
TEMPLATE_FIELDS = ("chat_template", "chat_template_kwargs")
"""Sampling parameters of a job that concern only the template; sampling by ids ignores it."""

ABORTED = "abort"
"""Finish reason of vLLM and SGLang for a request that was aborted."""
ID_MAX = 2**31 - 1
"""Largest token id: records keep ids as int32."""
COUNT_MAX = 2**31 - 1
"""Largest token count or token index in one answer, so that budgets and costs stay exact."""
LARGE_BYTES = 1 << 20
"""Larger answers are parsed in a thread: their lists of ids take a while."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the model sees it."""

    ids: tuple[int, ...]
    max_model_tokens: int | None
    """Largest number of tokens of prompt and completion together; None if the server reports
    none."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A completion, as ids."""

    ids: tuple[int, ...]
    logprobs: Sequence[float]
    """One for each of `ids`, rounded to float32."""
    finish_reason: str | None
    ended_turn: bool
    """Whether the last id is a token that ended the turn (not a stop string, not the length)."""
    usage: Usage
    """See `read_usage`. A completion without completion tokens in its usage is refused."""
    policy_version: str | None = None
    policy_spans: tuple[tuple[str, int], ...] = ()
    """See `Turn.policy_spans`."""
    model: str | None = None
    """The model's name as the server reports it, if it does."""
    aborted: bool = False
    """Whether the server ended it in the middle, e.g. to load weights: it is then continued, and is
    no reply by itself. A server that does not say so, or has no tokens, raises MalformedReply."""


class TokenServer(Protocol):
    """Client of a server that samples by token ids."""

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any],
        *,
        reply: bool,
        template: Mapping[str, Any],
    ) -> Rendered:
        """Ids of a conversation; with `reply`, up to where the assistant's reply begins.

        `template` holds those of `TEMPLATE_FIELDS` that the job sets. Raises MalformedReply.
        """

    async def sample(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> Sampled:
        """Continue `ids`. `sampling` uses OpenAI's parameter names.

        Raises:
            MalformedReply: ids or logprobs are missing or do not match, or the server aborted.
            ModelConfigError: the server sampled after another prompt.
        """

    async def text(self, ids: Sequence[int]) -> str:
        """The text of the ids, including control tokens. Raises MalformedReply."""

    async def score(self, ids: Sequence[int]) -> tuple[float | None, ...]:
        """The logprob at temperature 1 of each id given the ids before it; None for the first.

        Raises MalformedReply.
        """


class ServedBy(TypedDict):
    """Fields of `Turn` with the same names."""

    policy_version: str | None
    policy_spans: tuple[tuple[str, int], ...]


UNKNOWN_POLICY = ServedBy(policy_version=None, policy_spans=())


@dataclass(frozen=True, slots=True)
class Server:
    """The facts about one kind of server: `SERVER` in its module, whose name is the kind."""

    connect: Callable[[HttpPost, str], TokenServer]
    """Makes the client of token mode from a `HttpPost` and the model's name."""
    version_path: str
    """GET path below the server's root; the answer is an object with the text `version`."""
    tokenizer_path: str
    """POST path below the server's root, for `model`, `messages` and `tools`; the answer is an
    object with the list `tokens` or the number `count`."""
    too_long: tuple[str, ...] = ()
    """Lower-case phrases in the error for a conversation that exceeds the context."""
    given_up: frozenset[str] = frozenset()
    """Finish reasons of requests that the server aborted."""
    served_by: Callable[[Mapping[str, Any], Mapping[str, Any]], ServedBy] = lambda answer, choice: (
        UNKNOWN_POLICY
    )
    """Reads the policy version from a chat completion and its first choice. Raises KeyError,
    TypeError or ValueError if the version does not have the server's format."""


class MalformedReply(ValueError):
    """The server answered 200 with something other than a chat completion."""


class RequestGivenUp(MalformedReply):
    """The server ended the request itself, and what it has sampled is no reply."""


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


def is_aborted(reason: str | None, ids: Any) -> bool:
    """Whether the finish reason of vLLM or SGLang says that the reply was aborted after `ids`."""
    return reason == ABORTED and bool(ids)


def require_prompt(sent: Sequence[int], returned: Any) -> None:
    """Check the prompt's ids, if the server returns them. Raises MalformedReply."""
    if isinstance(returned, list) and returned != list(sent):
        raise MalformedReply(f"the server sampled after other ids than the {len(sent)} it was sent")


def finished(reason: str | None, given_up: Collection[str]) -> str | None:
    """Return `reason`, the regular end of a reply. Raises MalformedReply if the server gave up.

    A reply that was aborted does not show what the policy would have said, so it is neither a turn
    to train on nor the end of a trajectory.
    """
    if reason in given_up:
        raise RequestGivenUp(f"the server aborted the request, finish_reason {reason!r}")
    return reason


@dataclass(frozen=True, slots=True)
class OpenAITokenizer:
    """The part of a `TokenServer` in which vLLM and SGLang agree."""

    post: HttpPost
    model: str
    tokenizer_path: ClassVar[str]

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any],
        *,
        reply: bool,
        template: Mapping[str, Any],
    ) -> Rendered:
        """See `TokenServer.render`."""
        body = {"model": self.model, "messages": messages, "add_generation_prompt": reply}
        if tools:
            body["tools"] = tools
        return await read(rendered, await self.post(self.tokenizer_path, {**body, **template}))


def _required_ids(value: Any) -> tuple[int, ...]:
    ids = read_ids(value)
    if ids is None:
        raise MalformedReply("the reply has no token ids")
    return ids


def rendered(answer: bytes) -> Rendered:
    """A tokenizer's answer: `tokens`, optionally `max_model_len`. Raises MalformedReply."""
    data = json_object(answer)
    longest = data.get("max_model_len")
    if longest is not None and type(longest) is not int:
        raise MalformedReply(f"max_model_len is {longest!r:.60}")
    if longest is not None and not 0 < longest <= COUNT_MAX:
        longest = None  # tokenizers without a limit report -1, or 10**30
    return Rendered(_required_ids(data.get("tokens")), longest)


def required_text(value: Any) -> str:
    """A text that must be present. Raises MalformedReply."""
    if not isinstance(value, str):
        raise MalformedReply("the reply has no text for the token ids")
    return clean(value)


def require_whole(sent: int, counted: Any, cause: str) -> None:
    """Check that the server sampled after the whole prompt, if it reports the prompt's length.

    Raises ModelConfigError if it was truncated, so that the record would show another one; `cause`
    names what makes this kind of server truncate prompts.
    """
    if type(counted) is int and counted != sent:
        raise ModelConfigError(
            f"the server sampled after {counted} tokens of a prompt of {sent}: it must not "
            f"truncate prompts ({cause})"
        )


def optional_text(value: Any) -> str | None:
    """A text, its parts joined, or None. Raises MalformedReply for anything else."""
    if value is None:
        return None
    if isinstance(value, list):  # content in parts
        value = "".join(part.get("text") or "" for part in value)
    if not isinstance(value, str | int | float):
        raise MalformedReply(f"expected text, not {type(value).__name__}")
    return clean(str(value))


def whole_scores(scores: Sequence[float | None]) -> tuple[float | None, ...]:
    """Logprobs of a prompt. Raises MalformedReply if any but the first is missing."""
    if any(score is None for score in scores[1:]):
        raise MalformedReply("a token of the prompt has no logprob")
    return tuple(scores)


def sampled(
    ids: Any,
    logprobs: Sequence[float | None],
    *,
    finish_reason: str | None,
    stopped_by: Any,
    usage: Usage,
    policy_version: str | None = None,
    policy_spans: tuple[tuple[str, int], ...] = (),
    model: str | None = None,
    aborted: bool = False,
) -> Sampled:
    """A completion with one logprob per id; `stopped_by` is the stop string that ended it, if any.

    Raises MalformedReply if ids or logprobs are missing or do not match.
    """
    found = _required_ids(ids)
    if len(logprobs) != len(found) or any(value is None for value in logprobs):
        raise MalformedReply(f"{len(found)} token ids but {len(logprobs)} logprobs")
    try:
        rounded = round_float32(float(value) for value in logprobs if value is not None)
    except ValueError as error:
        raise MalformedReply(str(error)) from error
    begins = [first for _, first in policy_spans]
    if begins != sorted(begins) or max(begins, default=0) > len(found):
        raise MalformedReply(f"spans of weights that are not those of {len(found)} tokens")
    return Sampled(
        ids=found,
        logprobs=rounded,
        finish_reason=finish_reason,
        ended_turn=finish_reason == "stop" and not isinstance(stopped_by, str) and bool(found),
        usage=usage,
        policy_version=policy_version,
        policy_spans=policy_spans,
        model=model,
        aborted=aborted,
    )
