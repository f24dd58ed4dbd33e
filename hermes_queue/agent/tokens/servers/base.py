"""The contract of a model server that takes and gives token ids, and readers of its answers.

Such a server renders a conversation to ids with the model's own template, and continues a list of
ids. Each calls these things by names of its own; here they have one.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from hermes_queue.agent.endpoint.values import COUNT_MAX, clean, read_ids
from hermes_queue.agent.endpoint.values import MalformedReply as MalformedReply
from hermes_queue.agent.endpoint.values import finished as finished
from hermes_queue.agent.endpoint.values import read as read
from hermes_queue.agent.endpoint.values import read_usage as read_usage
from hermes_queue.agent.tokens.merge import round_float32
from hermes_queue.errors import ModelConfigError
from hermes_queue.models import Usage

HttpPost = Callable[[str, Mapping[str, Any]], Awaitable[bytes]]
"""POST of a JSON body to a path below the server's root; returns the body of a 200."""
TEMPLATE_FIELDS = ("chat_template", "chat_template_kwargs")
"""Of a job's sampling parameters, those that are for the template: ids are sampled without it."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the model sees it."""

    ids: tuple[int, ...]
    max_model_tokens: int | None
    """How many tokens prompt and completion may have together, where the server says so."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A completion of ids."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One for each of `ids`, rounded to float32."""
    finish_reason: str | None
    ended_turn: bool
    """Whether the last id is a token that ended the turn (not a stop string, not the length)."""
    usage: Usage
    policy_version: str | None = None
    policy_spans: tuple[tuple[str, int], ...] = ()
    """See `Turn.policy_spans`."""
    model: str | None = None
    """What the server says it is, if it does."""


class TokenServer(Protocol):
    """One protocol of ids in and ids out."""

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any],
        *,
        reply: bool,
        template: Mapping[str, Any],
    ) -> Rendered:
        """Ids of a conversation; with `reply` up to where the assistant is to speak.

        `template` holds those of `TEMPLATE_FIELDS` that the job sets.

        Raises:
            MalformedReply: the server's answer is no list of ids.
        """
        ...

    async def sample(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> Sampled:
        """Continue `ids`; `sampling` in OpenAI's names.

        Raises:
            MalformedReply: ids or logprobs are missing or do not match, or the server gave up.
            ModelConfigError: it sampled after another prompt.
        """
        ...

    async def text(self, ids: Sequence[int]) -> str:
        """What the ids stand for, control tokens included.

        Raises:
            MalformedReply: the server does not say.
        """
        ...

    async def score(self, ids: Sequence[int]) -> tuple[float | None, ...]:
        """The logprob of each of `ids` after those before it; None of the first.

        At temperature 1, whatever the ids were sampled with.

        Raises:
            MalformedReply: they are missing or do not match.
        """
        ...


class ServedBy(TypedDict):
    """The fields of `Turn` of the same names."""

    policy_version: str | None
    policy_spans: tuple[tuple[str, int], ...]


UNKNOWN_POLICY = ServedBy(policy_version=None, policy_spans=())


def _silent(_: Mapping[str, Any], __: Mapping[str, Any]) -> ServedBy:
    return UNKNOWN_POLICY


@dataclass(frozen=True, slots=True)
class Server:
    """All that is known of one kind of server: `SERVER` in its module, whose name is the kind."""

    connect: Callable[[HttpPost, str], TokenServer]
    """Makes the client of token mode from the way to the server and the model's name."""
    version_path: str
    """GET below the server's root; the answer is an object with the text `version`."""
    tokenizer_path: str
    """POST below the server's root of `model`, `messages` and `tools`; the answer is an object
    with the list `tokens` or the number `count`."""
    too_long: tuple[str, ...] = ()
    """Phrases in lower case by which an error says that a conversation exceeds the context."""
    given_up: frozenset[str] = frozenset()
    """Finish reasons of requests that the server ended itself."""
    served_by: Callable[[Mapping[str, Any], Mapping[str, Any]], ServedBy] = _silent
    """Reads the policy version off a chat completion and its first choice. Raises KeyError,
    TypeError or ValueError where the version has another form than the server's."""


def conversation(
    model: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, reply: bool
) -> dict[str, Any]:
    """The body of a request to render."""
    body = {"model": model, "messages": messages, "add_generation_prompt": reply}
    return {**body, "tools": tools} if tools else body


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object that an answer is.

    Raises:
        MalformedReply: it is something else.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedReply(f"{type(error).__name__}: {error}; body: {body[:200]!r}") from error
    if not isinstance(data, dict):
        raise MalformedReply(f"the body is a JSON {type(data).__name__}")
    return data


def _needed_ids(value: Any) -> tuple[int, ...]:
    ids = read_ids(value)
    if ids is None:
        raise MalformedReply("no token ids in the reply")
    return ids


def rendered(answer: bytes) -> Rendered:
    """What a tokenizer answers: `tokens` and, if it says so, `max_model_len`.

    Raises:
        MalformedReply: it is something else.
    """
    data = json_object(answer)
    longest = data.get("max_model_len")
    if longest is not None and type(longest) is not int:
        raise MalformedReply(f"max_model_len is {longest!r:.60}")
    if longest is not None and not 0 < longest <= COUNT_MAX:
        longest = None  # tokenizers that know no length say -1, or 10**30
    return Rendered(_needed_ids(data.get("tokens")), longest)


def needed_text(value: Any) -> str:
    """A text that must be there.

    Raises:
        MalformedReply: it is not.
    """
    if not isinstance(value, str):
        raise MalformedReply("no text of the token ids in the reply")
    return clean(value)


def require_whole(sent: int, counted: Any, cause: str) -> None:
    """Make sure that the server sampled after all of the prompt, as far as it says.

    `cause` names what makes this kind of server truncate prompts.

    Raises:
        ModelConfigError: it did not, so that the record would show another prompt.
    """
    if type(counted) is int and counted != sent:
        raise ModelConfigError(
            f"the server sampled after a prompt of {counted} tokens, {sent} were sent: it must not "
            f"truncate prompts ({cause})"
        )


def optional_text(value: Any) -> str | None:
    """A text, or None."""
    return None if value is None else clean(str(value))


def whole_scores(scores: Sequence[float | None]) -> tuple[float | None, ...]:
    """Scores of a prompt, of which only the first may be missing.

    Raises:
        MalformedReply: another one is missing.
    """
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
    """A completion with one logprob for each of its ids.

    Raises:
        MalformedReply: ids or logprobs are missing or do not match.
    """
    found = _needed_ids(ids)
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
        ended_turn=finish_reason == "stop" and stopped_by is None and bool(found),
        usage=usage,
        policy_version=policy_version,
        policy_spans=policy_spans,
        model=model,
    )
