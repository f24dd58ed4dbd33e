"""SGLang: `/v1/tokenize`, `/generate` with `input_ids`, `/v1/detokenize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hermes_queue.agent.endpoint.values import clean, read_count
from hermes_queue.agent.tokens.servers.base import (
    UNKNOWN_POLICY,
    HttpPost,
    MalformedReply,
    Rendered,
    Sampled,
    ServedBy,
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
class Sglang:
    """Client of SGLang for token mode."""

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
        return await read(rendered, await self.post("/v1/tokenize", {**body, **template}))

    async def sample(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> Sampled:
        """See `TokenServer.sample`."""
        names = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens"}
        renamed = {names.get(name, name): value for name, value in sampling.items()}
        renamed["skip_special_tokens"] = False
        body = {"input_ids": list(ids), "sampling_params": renamed, "return_logprob": True}
        return await read(partial(_completion, len(ids)), await self.post("/generate", body))

    async def text(self, ids: Sequence[int]) -> str:
        """See `TokenServer.text`."""
        body = {"model": self.model, "tokens": list(ids), "skip_special_tokens": False}
        return required_text(json_object(await self.post("/v1/detokenize", body)).get("text"))

    async def score(self, ids: Sequence[int]) -> tuple[float | None, ...]:
        """See `TokenServer.score`."""
        sampling = {"max_new_tokens": 1, "temperature": 1.0}
        flags = {"return_logprob": True, "logprob_start_len": 0}
        body = {"input_ids": list(ids), "sampling_params": sampling, **flags}
        return await read(partial(_prompt_scores, ids), await self.post("/generate", body))


def _completion(sent: int, answer: bytes) -> Sampled:
    """Parse a completion after a prompt of `sent` ids."""
    data = json_object(answer)
    try:
        meta = data["meta_info"]
        finish = meta.get("finish_reason") or {}
        logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
        sampled_ids = [entry[1] for entry in meta["output_token_logprobs"]]
        matched = finish.get("matched")
        reason = finished(optional_text(finish.get("type")), GIVEN_UP)
        require_whole(sent, meta.get("prompt_tokens"), "started with --allow-auto-truncate")
        tokens = meta.get("completion_tokens", len(sampled_ids))
        if tokens != len(sampled_ids):
            raise MalformedReply(f"{tokens} tokens but {len(sampled_ids)} logprobs")
        return sampled(
            sampled_ids,
            logprobs,
            finish_reason=reason,
            stopped_by=matched if isinstance(matched, str) else None,
            usage=read_usage(meta, meta.get("cached_tokens"), sent),
            **_served_by(meta),
        )
    except MalformedReply:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise MalformedReply(f"{type(error).__name__}: {error}") from error


def _prompt_scores(ids: Sequence[int], answer: bytes) -> tuple[float | None, ...]:
    data = json_object(answer)
    try:
        found = data["meta_info"]["input_token_logprobs"]
        returned = [entry[1] for entry in found]
        if returned != list(ids):
            pairs = enumerate(zip(returned, ids, strict=False))
            place = next((at for at, (one, other) in pairs if one != other), "the end")
            raise MalformedReply(
                f"logprobs of {len(returned)} tokens for {len(ids)}, different from {place} on"
            )
        scores = [None if entry[0] is None else float(entry[0]) for entry in found]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise MalformedReply(f"prompt logprobs: {type(error).__name__}: {error}") from error
    return whole_scores(scores)


def _of_chat(data: Mapping[str, Any], choice: Mapping[str, Any]) -> ServedBy:
    """Read the policy from `metadata`, or from the choice if it has `return_meta_info`.

    Proxies may move it to the top level.
    """
    for place in (data, data.get("metadata"), choice.get("meta_info")):
        if isinstance(place, dict) and (served := _served_by(place))["policy_version"] is not None:
            return served
    return UNKNOWN_POLICY


def _served_by(meta: Mapping[str, Any]) -> ServedBy:
    """The weights that sampled the answer.

    `weight_version` is "default" until the weights are named. If they were updated during a
    completion, SGLang adds `weight_versions`, a list of {version, start, end}.

    Raises:
        KeyError, TypeError, ValueError: the list has another form, or an index is invalid.
    """
    version = optional_text(meta.get("weight_version"))
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
    tokenizer_path="/v1/tokenize",
    too_long=("model's context length", "exceeds the maximum allowed length"),
    given_up=GIVEN_UP,
    served_by=_of_chat,
)
