"""Model calls and their tokens."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from hermes_queue.wire.arrays import Logprobs, LossMask, TokenIds
from hermes_queue.wire.branches import BranchLabel
from hermes_queue.wire.conversation import Wire

DeliveryStatus = Literal["delivered", "undelivered"]
"""undelivered: the program never got the reply, so it is no part of what it did."""


class TurnCall(Wire):
    """The request of a program that a turn answers."""

    dialect: str
    """`chat`, `responses` or `messages`."""
    path: str
    requested_model: str | None = None
    streamed: bool = False
    status: DeliveryStatus = "undelivered"
    hints: dict[str, str] = Field(default_factory=dict)
    """Headers by which programs name the session or sub-agent that calls."""
    began_s: float = 0.0
    """Seconds between the start of the program and the call."""


class Usage(Wire):
    """Token counts as the server reports them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Turn(Wire):
    """One model call. Token fields hold what the server returned; text is never re-encoded."""

    prompt_ids: TokenIds | None = None
    completion_ids: TokenIds | None = None
    logprobs: Logprobs | None = None
    """One per token of `completion_ids`, rounded to float32 at capture."""
    logprobs_mode: str | None = None
    """Distribution of `logprobs` in vLLM's terms: `raw_logprobs` (before temperature and the like)
    or `processed_logprobs` (after them). None = unknown."""
    sampling: dict[str, Any] = Field(default_factory=dict)
    server: str | None = None
    """URL of the endpoint, without credentials."""
    server_version: str | None = None
    """Name and version of the server, e.g. `vllm 0.32.0`. None = unknown."""
    policy_version: str | None = None
    """Version of the weights as the server names it; the last one if they changed in the turn."""
    policy_spans: tuple[tuple[str, int], ...] = ()
    """If the weights changed during the completion: (version, index of its first token in
    `completion_ids`) for each."""
    finish_reason: str | None = None
    usage: Usage = Usage()
    latency_s: float = 0.0
    parent: int | None = None
    """Index of the turn whose reply it continues; None = it begins a conversation. This and the
    following only in the record of a program: elsewhere each turn continues the one before it."""
    branch: int | None = None
    """Index in `branches`."""
    call: TurnCall | None = None


class TokenSequence(Wire):
    """Turns in one sequence, of which each prompt extends the tokens before it exactly."""

    ids: TokenIds
    loss_mask: LossMask
    """1 for tokens the policy sampled, 0 for context. Turns that several sequences share are
    trainable in the first one."""
    logprobs: Logprobs
    """0.0 where `loss_mask` is 0."""
    turns: tuple[int, ...] = ()
    """The turns in it, in order; () in records of version 1."""
    branch: BranchLabel = "main"
    """Label of the branch of its last turn."""
