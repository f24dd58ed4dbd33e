"""SGLang: `/v1/tokenize`, `/generate` with `input_ids`, `/v1/detokenize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_queue.agent.tokens.servers.base import (
    UNKNOWN_POLICY,
    MalformedReply,
    OpenAITokenizer,
    Sampled,
    ServedBy,
    Server,
    clean,
    finished,
    is_aborted,
    json_object,
    optional_text,
    read,
    read_count,
    read_usage,
    reader,
    require_whole,
    required_text,
    sampled,
    whole_scores,
)

GIVEN_UP = frozenset({"abort", "error"})
"""Finish reasons of requests that were aborted for a weight update or after an error."""


class Sglang(OpenAITokenizer):
    """Client of SGLang for token mode."""

    __slots__ = ()
    tokenizer_path = "/v1/tokenize"

    async def sample(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> Sampled:
        """See `TokenServer.sample`."""
        names = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens"}
        renamed = {names.get(name, name): value for name, value in sampling.items()}
        renamed["skip_special_tokens"] = False
        body = {"input_ids": list(ids), "sampling_params": renamed, "return_logprob": True}
        return await read(_completion, await self.post("/generate", body), len(ids))

    async def text(self, ids: Sequence[int]) -> str:
        """See `TokenServer.text`."""
        body = {"model": self.model, "tokens": list(ids), "skip_special_tokens": False}
        return required_text(json_object(await self.post("/v1/detokenize", body)).get("text"))

    async def score(self, ids: Sequence[int]) -> tuple[float | None, ...]:
        """See `TokenServer.score`."""
        sampling = {"max_new_tokens": 1, "temperature": 1.0}
        flags = {"return_logprob": True, "logprob_start_len": 0}
        body = {"input_ids": list(ids), "sampling_params": sampling, **flags}
        return await read(_prompt_scores, await self.post("/generate", body), ids)


@reader
def _completion(answer: bytes, sent: int) -> Sampled:
    """Parse a completion after a prompt of `sent` ids."""
    meta = json_object(answer)["meta_info"]
    finish = meta.get("finish_reason") or {}
    entries = meta["output_token_logprobs"]
    reason = optional_text(finish.get("type"))
    aborted = is_aborted(reason, entries)
    reason = reason if aborted else finished(reason, GIVEN_UP)
    require_whole(sent, meta.get("prompt_tokens"), "started with --allow-auto-truncate")
    tokens = meta.get("completion_tokens", len(entries))
    if tokens != len(entries):
        raise MalformedReply(f"{tokens} tokens but {len(entries)} logprobs")
    return sampled(
        [entry[1] for entry in entries],
        [entry[0] for entry in entries],
        finish_reason=reason,
        stopped_by=finish.get("matched"),
        usage=read_usage(meta, meta.get("cached_tokens"), sent, len(entries)),
        **_served_by(meta),
        aborted=aborted,
    )


@reader
def _prompt_scores(answer: bytes, ids: Sequence[int]) -> tuple[float | None, ...]:
    found = json_object(answer)["meta_info"]["input_token_logprobs"]
    returned = [entry[1] for entry in found]
    if returned != list(ids):
        pairs = enumerate(zip(returned, ids, strict=False))
        place = next((at for at, (one, other) in pairs if one != other), "the end")
        raise MalformedReply(
            f"logprobs of {len(returned)} tokens for {len(ids)}, different from {place} on"
        )
    return whole_scores([None if entry[0] is None else float(entry[0]) for entry in found])


def _of_chat(data: Mapping[str, Any], choice: Mapping[str, Any]) -> ServedBy:
    """Read it from the top level (proxies), `metadata`, or with `return_meta_info` the choice."""
    for place in (data, data.get("metadata"), choice.get("meta_info")):
        if isinstance(place, dict) and (served := _served_by(place))["policy_version"] is not None:
            return served
    return UNKNOWN_POLICY


def _served_by(meta: Mapping[str, Any]) -> ServedBy:
    """The weights that sampled the answer.

    `weight_version` is "default" until the weights are named. If they were updated during a
    completion, SGLang adds `weight_versions`, a list of {version, start, end}.
    """
    named = meta.get("weight_version")
    version = None if named is None else clean(str(named))
    spans = tuple(
        (clean(str(span["version"])), read_count(span["start"], "weight_versions: start"))
        for span in meta.get("weight_versions") or ()
    )
    return ServedBy(
        policy_version=None if version == "default" else version,
        policy_spans=spans if len(spans) > 1 else (),
    )


SERVER = Server(
    connect=Sglang,
    version_path="/get_server_info",
    tokenizer_path=Sglang.tokenizer_path,
    too_long=("model's context length", "exceeds the maximum allowed length"),
    given_up=GIVEN_UP,
    served_by=_of_chat,
)
