"""A group as `/batch` hands it out: with all keys of the protocol."""

from __future__ import annotations

import gzip
import json

from hermes_queue.sinks.atropos.wire import Post

_ENV_ID = 0
_ABSENT = (
    "advantages",
    "ref_logprobs",
    "generation_params",
    "images",
    "distill_token_ids",
    "distill_logprobs",
)
_NO_EXAMPLE = (
    "tokens",
    "masks",
    "scores",
    "advantages",
    "ref_logprobs",
    "generation_params",
    "inference_logprobs",
    "messages",
    "images",
)

NO_EXAMPLE = json.dumps({name: [] for name in _NO_EXAMPLE}).encode()
"""The answer of `/latest_example` before the first group."""


def group_body(post: Post, group_size: int, step: int) -> bytes:
    """The JSON of a group in the batch of `step`, with a null for each absent field."""
    fields = gzip.decompress(post.fields)
    head = {
        "env_id": _ENV_ID,
        "group_overrides": {"group_size": group_size, "hermes_queue": {"step": step}},
        "messages": None,  # a later key of the same name wins
        **dict.fromkeys(_ABSENT),
    }
    return json.dumps(head, separators=(",", ":"))[:-1].encode() + b"," + fields
