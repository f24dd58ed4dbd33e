"""Servers that take and give token ids: vLLM and SGLang.

Both render a conversation to ids with the model's own template, and both continue a list of ids.
What they call these things differs; here it has one name.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hermes_queue.agent.reply import MalformedReply, read_ids, served_by
from hermes_queue.agent.tokens import round_float32
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
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, reply: bool
    ) -> Rendered:
        """Ids of a conversation; with `reply` up to where the assistant is to speak.

        Raises:
            MalformedReply: the server's answer is no list of ids.
        """
        ...

    async def sample(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> Sampled:
        """Continue `ids`; `sampling` in OpenAI's names.

        Raises:
            MalformedReply: ids or logprobs are missing or do not match.
        """
        ...

    async def text(self, ids: Sequence[int]) -> str:
        """What the ids stand for, control tokens included."""
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
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, reply: bool
    ) -> Rendered:
        """See `TokenServer.render`."""
        body = {"model": self.model, "messages": messages, "add_generation_prompt": reply}
        data = _object(
            await self.post("/tokenize", {**body, **({"tools": tools} if tools else {})})
        )
        return Rendered(_needed_ids(data.get("tokens")), data.get("max_model_len"))

    async def sample(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> Sampled:
        """See `TokenServer.sample`."""
        asked = {"logprobs": 0, "return_token_ids": True, "skip_special_tokens": False}
        body = {"model": self.model, "prompt": list(ids), **sampling, **asked}
        data = _object(await self.post("/v1/completions", body))
        try:
            choice = data["choices"][0]
            logprobs = choice["logprobs"]["token_logprobs"]
            usage = data.get("usage") or {}
            matched = choice.get("stop_reason")
            return _sampled(
                choice.get("token_ids"),
                logprobs,
                finish_reason=choice.get("finish_reason"),
                stopped_by=matched if isinstance(matched, str) else None,
                usage=Usage(
                    prompt_tokens=usage.get("prompt_tokens") or len(ids),
                    completion_tokens=usage.get("completion_tokens") or 0,
                    cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens")
                    or 0,
                ),
                model=_text(data.get("model")),
            )
        except (KeyError, IndexError, TypeError) as error:
            raise MalformedReply(f"{type(error).__name__}: {error}") from error

    async def text(self, ids: Sequence[int]) -> str:
        """See `TokenServer.text`."""
        body = {"model": self.model, "tokens": list(ids)}
        return str(_object(await self.post("/detokenize", body)).get("prompt", ""))

    async def score(self, ids: Sequence[int]) -> tuple[float | None, ...]:
        """See `TokenServer.score`."""
        body = {"model": self.model, "prompt": list(ids), "max_tokens": 1, "prompt_logprobs": 0}
        data = _object(await self.post("/v1/completions", body))
        try:
            found = data["choices"][0]["prompt_logprobs"]
            scores = [
                None if entry is None else float(entry[str(token)]["logprob"])
                for token, entry in zip(ids, found, strict=True)
            ]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise MalformedReply(f"prompt logprobs: {type(error).__name__}: {error}") from error
        return _scores(scores)


@dataclass(frozen=True, slots=True)
class Sglang:
    """SGLang: `/v1/tokenize`, `/generate` with `input_ids`, `/v1/detokenize`."""

    post: Post
    model: str

    async def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, reply: bool
    ) -> Rendered:
        """See `TokenServer.render`."""
        body = _conversation(self.model, messages, tools, reply=reply)
        data = _object(await self.post("/v1/tokenize", body))
        return Rendered(_needed_ids(data.get("tokens")), data.get("max_model_len"))

    async def sample(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> Sampled:
        """See `TokenServer.sample`."""
        names = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens"}
        renamed = {names.get(name, name): value for name, value in sampling.items()}
        renamed["skip_special_tokens"] = False
        body = {"input_ids": list(ids), "sampling_params": renamed, "return_logprob": True}
        data = _object(await self.post("/generate", body))
        try:
            meta = data["meta_info"]
            finish = meta.get("finish_reason") or {}
            logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
            sampled_ids = [entry[1] for entry in meta["output_token_logprobs"]]
            matched = finish.get("matched")
            return _sampled(
                sampled_ids,
                logprobs,
                finish_reason=finish.get("type"),
                stopped_by=matched if isinstance(matched, str) else None,
                usage=Usage(
                    prompt_tokens=meta.get("prompt_tokens") or len(ids),
                    completion_tokens=meta.get("completion_tokens") or 0,
                    cached_tokens=meta.get("cached_tokens") or 0,
                ),
                **served_by(meta),
            )
        except MalformedReply:
            raise
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise MalformedReply(f"{type(error).__name__}: {error}") from error

    async def text(self, ids: Sequence[int]) -> str:
        """See `TokenServer.text`."""
        body = {"model": self.model, "tokens": list(ids), "skip_special_tokens": False}
        return str(_object(await self.post("/v1/detokenize", body)).get("text", ""))

    async def score(self, ids: Sequence[int]) -> tuple[float | None, ...]:
        """See `TokenServer.score`."""
        sampling = {"max_new_tokens": 1, "temperature": 1.0}
        asked = {"return_logprob": True, "logprob_start_len": 0}
        body = {"input_ids": list(ids), "sampling_params": sampling, **asked}
        data = _object(await self.post("/generate", body))
        try:
            found = data["meta_info"]["input_token_logprobs"]
            if [entry[1] for entry in found] != list(ids):
                raise MalformedReply("prompt logprobs are of other tokens")
            scores = [None if entry[0] is None else float(entry[0]) for entry in found]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise MalformedReply(f"prompt logprobs: {type(error).__name__}: {error}") from error
        return _scores(scores)


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
    except ValueError as error:
        raise MalformedReply(f"{error}; body: {body[:200]!r}") from error
    if not isinstance(data, dict):
        raise MalformedReply(f"the body is a JSON {type(data).__name__}")
    return data


def _needed_ids(value: Any) -> tuple[int, ...]:
    ids = read_ids(value)
    if ids is None:
        raise MalformedReply("no token ids in the reply")
    return ids


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


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
