"""Servers that take and give token ids: vLLM and SGLang.

Both render a conversation to ids with the model's own template, and both continue a list of ids.
What they call these things differs; here it has one name.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from hermes_queue.agent.endpoint.reply import (
    COUNT_MAX,
    MalformedReply,
    clean,
    finished,
    read,
    read_ids,
    read_usage,
    served_by,
)
from hermes_queue.agent.tokens.merge import round_float32
from hermes_queue.errors import ModelConfigError
from hermes_queue.models import Usage

Post = Callable[[str, Mapping[str, Any]], Awaitable[bytes]]
"""POST of a JSON body to a path below the server's root; returns the body of a 200."""


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


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM: `/tokenize`, `/v1/completions` with ids as prompt, `/detokenize`."""

    post: Post
    model: str

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any],
        *,
        reply: bool,
        template: Mapping[str, Any],
    ) -> Rendered:
        """See `TokenServer.render`."""
        body = _conversation(self.model, messages, tools, reply=reply)
        return await read(_rendered, await self.post("/tokenize", {**body, **template}))

    async def sample(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> Sampled:
        """See `TokenServer.sample`."""
        asked = {"logprobs": 0, "return_token_ids": True, "skip_special_tokens": False}
        body = {"model": self.model, "prompt": list(ids), **sampling, **asked}
        return await read(
            partial(_vllm_sampled, len(ids)), await self.post("/v1/completions", body)
        )

    async def text(self, ids: Sequence[int]) -> str:
        """See `TokenServer.text`."""
        body = {"model": self.model, "tokens": list(ids)}
        return _needed_text(_object(await self.post("/detokenize", body)).get("prompt"))

    async def score(self, ids: Sequence[int]) -> tuple[float | None, ...]:
        """See `TokenServer.score`."""
        body = {"model": self.model, "prompt": list(ids), "max_tokens": 1, "prompt_logprobs": 0}
        return await read(partial(_vllm_scores, ids), await self.post("/v1/completions", body))


@dataclass(frozen=True, slots=True)
class Sglang:
    """SGLang: `/v1/tokenize`, `/generate` with `input_ids`, `/v1/detokenize`."""

    post: Post
    model: str

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any],
        *,
        reply: bool,
        template: Mapping[str, Any],
    ) -> Rendered:
        """See `TokenServer.render`."""
        body = _conversation(self.model, messages, tools, reply=reply)
        return await read(_rendered, await self.post("/v1/tokenize", {**body, **template}))

    async def sample(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> Sampled:
        """See `TokenServer.sample`."""
        names = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens"}
        renamed = {names.get(name, name): value for name, value in sampling.items()}
        renamed["skip_special_tokens"] = False
        body = {"input_ids": list(ids), "sampling_params": renamed, "return_logprob": True}
        return await read(partial(_sglang_sampled, len(ids)), await self.post("/generate", body))

    async def text(self, ids: Sequence[int]) -> str:
        """See `TokenServer.text`."""
        body = {"model": self.model, "tokens": list(ids), "skip_special_tokens": False}
        return _needed_text(_object(await self.post("/v1/detokenize", body)).get("text"))

    async def score(self, ids: Sequence[int]) -> tuple[float | None, ...]:
        """See `TokenServer.score`."""
        sampling = {"max_new_tokens": 1, "temperature": 1.0}
        asked = {"return_logprob": True, "logprob_start_len": 0}
        body = {"input_ids": list(ids), "sampling_params": sampling, **asked}
        return await read(partial(_sglang_scores, ids), await self.post("/generate", body))


TEMPLATE_FIELDS = ("chat_template", "chat_template_kwargs")
"""Of a job's sampling parameters, those that are for the template: ids are sampled without it."""
SERVERS: Mapping[str, Callable[[Post, str], TokenServer]] = {"vllm": Vllm, "sglang": Sglang}


def token_server(kind: str, post: Post, model: str) -> TokenServer:
    """The server called `kind`.

    Raises:
        ModelConfigError: there is no such kind.
    """
    if kind not in SERVERS:
        raise ModelConfigError(
            f"agent openai: server {kind!r} takes no token ids here; known: {', '.join(SERVERS)}"
        )
    return SERVERS[kind](post, model)


def _conversation(
    model: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, reply: bool
) -> dict[str, Any]:
    body = {"model": model, "messages": messages, "add_generation_prompt": reply}
    return {**body, "tools": tools} if tools else body


def _object(body: bytes) -> dict[str, Any]:
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


def _rendered(answer: bytes) -> Rendered:
    data = _object(answer)
    longest = data.get("max_model_len")
    if longest is not None and type(longest) is not int:
        raise MalformedReply(f"max_model_len is {longest!r:.60}")
    if longest is not None and not 0 < longest <= COUNT_MAX:
        longest = None  # tokenizers that know no length say -1, or 10**30
    return Rendered(_needed_ids(data.get("tokens")), longest)


def _needed_text(value: Any) -> str:
    if not isinstance(value, str):
        raise MalformedReply("no text of the token ids in the reply")
    return clean(value)


def _require_whole(sent: int, counted: Any) -> None:
    """Make sure that the server sampled after all of the prompt, as far as it says.

    Raises:
        ModelConfigError: it did not, so that the record would show another prompt.
    """
    if type(counted) is int and counted != sent:
        raise ModelConfigError(
            f"the server sampled after a prompt of {counted} tokens, {sent} were sent: it must not "
            "truncate prompts (SGLang: --allow-auto-truncate; vLLM: truncate_prompt_tokens in the "
            "sampling parameters)"
        )


def _vllm_sampled(sent: int, answer: bytes) -> Sampled:
    """Of a completion after `sent` ids."""
    data = _object(answer)
    try:
        choice = data["choices"][0]
        logprobs = choice["logprobs"]["token_logprobs"]
        usage = data.get("usage") or {}
        matched = choice.get("stop_reason")
        _require_whole(sent, usage.get("prompt_tokens"))
        return _sampled(
            choice.get("token_ids"),
            logprobs,
            finish_reason=finished(_text(choice.get("finish_reason"))),
            stopped_by=matched if isinstance(matched, str) else None,
            usage=read_usage(
                usage, (usage.get("prompt_tokens_details") or {}).get("cached_tokens"), sent
            ),
            model=_text(data.get("model")),
        )
    except MalformedReply:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise MalformedReply(f"{type(error).__name__}: {error}") from error


def _vllm_scores(ids: Sequence[int], answer: bytes) -> tuple[float | None, ...]:
    data = _object(answer)
    try:
        found = data["choices"][0]["prompt_logprobs"]
        scores = [
            None if entry is None else float(entry[str(token)]["logprob"])
            for token, entry in zip(ids, found, strict=True)
        ]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise MalformedReply(f"prompt logprobs: {type(error).__name__}: {error}") from error
    return _scores(scores)


def _sglang_sampled(sent: int, answer: bytes) -> Sampled:
    """Of a completion after `sent` ids."""
    data = _object(answer)
    try:
        meta = data["meta_info"]
        finish = meta.get("finish_reason") or {}
        logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
        sampled_ids = [entry[1] for entry in meta["output_token_logprobs"]]
        matched = finish.get("matched")
        reason = finished(_text(finish.get("type")))
        _require_whole(sent, meta.get("prompt_tokens"))
        tokens = meta.get("completion_tokens", len(sampled_ids))
        if tokens != len(sampled_ids):
            raise MalformedReply(f"{tokens} tokens but {len(sampled_ids)} logprobs")
        return _sampled(
            sampled_ids,
            logprobs,
            finish_reason=reason,
            stopped_by=matched if isinstance(matched, str) else None,
            usage=read_usage(meta, meta.get("cached_tokens"), sent),
            **served_by(meta),
        )
    except MalformedReply:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise MalformedReply(f"{type(error).__name__}: {error}") from error


def _sglang_scores(ids: Sequence[int], answer: bytes) -> tuple[float | None, ...]:
    data = _object(answer)
    try:
        found = data["meta_info"]["input_token_logprobs"]
        told = [entry[1] for entry in found]
        if told != list(ids):
            pairs = enumerate(zip(told, ids, strict=False))
            place = next((at for at, (one, other) in pairs if one != other), "the end")
            raise MalformedReply(
                f"logprobs of {len(told)} tokens for {len(ids)}, others from {place} on"
            )
        scores = [None if entry[0] is None else float(entry[0]) for entry in found]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise MalformedReply(f"prompt logprobs: {type(error).__name__}: {error}") from error
    return _scores(scores)


def _text(value: Any) -> str | None:
    return None if value is None else clean(str(value))


def _scores(scores: Sequence[float | None]) -> tuple[float | None, ...]:
    if any(score is None for score in scores[1:]):
        raise MalformedReply("a token of the prompt has no logprob")
    return tuple(scores)


def _sampled(
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
