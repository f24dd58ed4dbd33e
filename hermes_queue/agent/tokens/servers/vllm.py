"""vLLM: `/tokenize`, `/v1/completions` with ids as prompt, `/detokenize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hermes_queue.agent.tokens.servers.base import (
    HttpPost,
    MalformedReply,
    Rendered,
    Sampled,
    Server,
    conversation,
    finished,
    json_object,
    optional_text,
    read,
    read_usage,
    rendered,
    require_whole,
    required_text,
    sampled,
    whole_scores,
)

GIVEN_UP = frozenset({"abort", "error"})
"""Finish reasons of requests that were aborted for a weight update or after an error."""


@dataclass(frozen=True, slots=True)
class Vllm:
    """Client of vLLM for token mode."""

    post: HttpPost
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
        body = conversation(self.model, messages, tools, reply=reply)
        return await read(rendered, await self.post("/tokenize", {**body, **template}))

    async def sample(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> Sampled:
        """See `TokenServer.sample`."""
        flags = {"logprobs": 0, "return_token_ids": True, "skip_special_tokens": False}
        body = {"model": self.model, "prompt": list(ids), **sampling, **flags}
        return await read(partial(_completion, len(ids)), await self.post("/v1/completions", body))

    async def text(self, ids: Sequence[int]) -> str:
        """See `TokenServer.text`."""
        body = {"model": self.model, "tokens": list(ids)}
        return required_text(json_object(await self.post("/detokenize", body)).get("prompt"))

    async def score(self, ids: Sequence[int]) -> tuple[float | None, ...]:
        """See `TokenServer.score`."""
        body = {"model": self.model, "prompt": list(ids), "max_tokens": 1, "prompt_logprobs": 0}
        return await read(partial(_prompt_scores, ids), await self.post("/v1/completions", body))


def _completion(sent: int, answer: bytes) -> Sampled:
    """Parse a completion after a prompt of `sent` ids."""
    data = json_object(answer)
    try:
        choice = data["choices"][0]
        logprobs = choice["logprobs"]["token_logprobs"]
        usage = data.get("usage") or {}
        matched = choice.get("stop_reason")
        require_whole(sent, usage.get("prompt_tokens"), "sampling parameter truncate_prompt_tokens")
        return sampled(
            choice.get("token_ids"),
            logprobs,
            finish_reason=finished(optional_text(choice.get("finish_reason")), GIVEN_UP),
            stopped_by=matched if isinstance(matched, str) else None,
            usage=read_usage(
                usage, (usage.get("prompt_tokens_details") or {}).get("cached_tokens"), sent
            ),
            model=optional_text(data.get("model")),
        )
    except MalformedReply:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise MalformedReply(f"{type(error).__name__}: {error}") from error


def _prompt_scores(ids: Sequence[int], answer: bytes) -> tuple[float | None, ...]:
    data = json_object(answer)
    try:
        found = data["choices"][0]["prompt_logprobs"]
        scores = [
            None if entry is None else float(entry[str(token)]["logprob"])
            for token, entry in zip(ids, found, strict=True)
        ]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise MalformedReply(f"prompt logprobs: {type(error).__name__}: {error}") from error
    return whole_scores(scores)


SERVER = Server(
    connect=Vllm,
    version_path="/version",
    tokenizer_path="/tokenize",
    too_long=("maximum context length", "longer than the maximum model length"),
    given_up=GIVEN_UP,
)
