"""vLLM: `/tokenize`, `/v1/completions` with ids as prompt, `/detokenize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_queue.agent.tokens.servers.base import (
    OpenAITokenizer,
    Sampled,
    Server,
    finished,
    is_aborted,
    json_object,
    optional_text,
    read,
    read_usage,
    reader,
    require_prompt,
    require_whole,
    required_text,
    sampled,
    whole_scores,
)

GIVEN_UP = frozenset({"abort", "error"})
"""Finish reasons of requests that were aborted for a weight update or after an error."""


class Vllm(OpenAITokenizer):
    """Client of vLLM for token mode."""

    __slots__ = ()
    tokenizer_path = "/tokenize"

    async def sample(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> Sampled:
        """See `TokenServer.sample`."""
        flags = {"logprobs": 0, "return_token_ids": True, "skip_special_tokens": False}
        body = {"model": self.model, "prompt": list(ids), **sampling, **flags}
        return await read(_completion, await self.post("/v1/completions", body), ids)

    async def text(self, ids: Sequence[int]) -> str:
        """See `TokenServer.text`."""
        body = {"model": self.model, "tokens": list(ids)}
        return required_text(json_object(await self.post("/detokenize", body)).get("prompt"))

    async def score(self, ids: Sequence[int]) -> tuple[float | None, ...]:
        """See `TokenServer.score`."""
        body = {"model": self.model, "prompt": list(ids), "max_tokens": 1, "prompt_logprobs": 0}
        return await read(_prompt_scores, await self.post("/v1/completions", body), ids)


@reader
def _completion(answer: bytes, prompt: Sequence[int]) -> Sampled:
    """Parse a completion after `prompt`."""
    data = json_object(answer)
    choice, sent = data["choices"][0], len(prompt)
    logprobs = choice["logprobs"]["token_logprobs"]
    usage = data.get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    require_whole(sent, usage.get("prompt_tokens"), "sampling parameter truncate_prompt_tokens")
    require_prompt(prompt, choice.get("prompt_token_ids"))
    reason = optional_text(choice.get("finish_reason"))
    aborted = is_aborted(reason, choice.get("token_ids"))
    return sampled(
        choice.get("token_ids"),
        logprobs,
        finish_reason=reason if aborted else finished(reason, GIVEN_UP),
        stopped_by=choice.get("stop_reason"),
        usage=read_usage(usage, cached, sent, len(logprobs)),
        model=optional_text(data.get("model")),
        aborted=aborted,
    )


@reader
def _prompt_scores(answer: bytes, ids: Sequence[int]) -> tuple[float | None, ...]:
    found = json_object(answer)["choices"][0]["prompt_logprobs"]
    scores = [
        None if entry is None else float(entry[str(token)]["logprob"])
        for token, entry in zip(ids, found, strict=True)
    ]
    return whole_scores(scores)


SERVER = Server(
    connect=Vllm,
    version_path="/version",
    tokenizer_path=Vllm.tokenizer_path,
    too_long=("maximum context length", "longer than the maximum model length"),
    given_up=GIVEN_UP,
)
