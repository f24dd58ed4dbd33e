"""The contract of a model server that takes and returns token ids, and readers of its answers.

Such a server renders a conversation to ids with the model's own template, and continues a list
of ids. Servers name these operations differently; this module defines common names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypedDict

from hermes_queue.agent.endpoint.values import COUNT_MAX, clean, read_ids
from hermes_queue.agent.endpoint.values import MalformedReply as MalformedReply
from hermes_queue.agent.endpoint.values import finished as finished
from hermes_queue.agent.endpoint.values import json_object as json_object
from hermes_queue.agent.endpoint.values import read as read
from hermes_queue.agent.endpoint.values import read_usage as read_usage
from hermes_queue.agent.endpoint.values import reader as reader
from hermes_queue.agent.tokens.merge import round_float32
from hermes_queue.errors import ModelConfigError
from hermes_queue.models import Usage

HttpPost = Callable[[str, Mapping[str, Any]], Awaitable[bytes]]
"""POSTs a JSON body to a path below the server's root; returns the body of a 200."""
TEMPLATE_FIELDS = ("chat_template", "chat_template_kwargs")
"""Sampling parameters of a job that concern only the template; sampling by ids ignores it."""


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
    logprobs: tuple[float, ...]
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
    """A text, or None."""
    return None if value is None else clean(str(value))


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
    return Sampled(
        ids=found,
        logprobs=rounded,
        finish_reason=finish_reason,
        ended_turn=finish_reason == "stop" and not isinstance(stopped_by, str) and bool(found),
        usage=usage,
        policy_version=policy_version,
        policy_spans=policy_spans,
        model=model,
    )
