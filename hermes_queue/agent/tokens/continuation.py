"""A reply that the server aborted in the middle, e.g. to load weights, and what continues it.

The next try sends the prompt and the tokens so far, and the server goes on from there. What it adds
has the same distribution as if nothing had happened, under the weights that it has by then; so only
parameters are allowed that look at one token at a time, or at all tokens alike. Everything else
is tried anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from hermes_queue.agent.tokens.merge import round_float32
from hermes_queue.agent.tokens.servers.base import MalformedReply, Sampled

_CONTINUED = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens"}
    | {"logit_bias", "stop_token_ids", "ignore_eos", "skip_special_tokens"}
    | {"chat_template", "chat_template_kwargs", "session_id", "cache_salt", "priority"}
)
"""Sampling parameters for which a continuation is sampled as the rest of the reply would have been.
Not so `stop` (it may lie across the seam), a `seed`, grammars, and penalties: those that count the
reply alone would count from the seam, as SGLang's `repetition_penalty` does."""
UNKNOWN_VERSION = "unknown"
"""Stands in `policy_spans` for weights that the server does not name, between some that it does."""


class ReplyAborted(MalformedReply):
    """The server aborted the reply; the next try goes on from its tokens."""


@dataclass(slots=True)
class PartialReply:
    """The tokens so far of one call, kept over its tries."""

    prompt: tuple[int, ...] = ()
    """The ids that were sent; a continuation begins with them."""
    rerendered: str = ""
    """Why they do not extend the anchor's, "" if they do."""
    _pieces: list[tuple[Sampled, str | None]] = field(default_factory=list)

    @property
    def ids(self) -> tuple[int, ...]:
        """Tokens sampled so far."""
        return tuple(token for piece, _ in self._pieces for token in piece.ids)

    def keep(
        self, piece: Sampled, version: str | None, sampling: Mapping[str, Any], most: int
    ) -> None:
        """Keep the tokens of an aborted reply, sampled after those so far by weights of `version`.

        Raises:
            ReplyAborted: they are kept.
            MalformedReply: nothing is kept: they cannot be continued, or that was done `most`
                times, so that the next try begins anew.
        """
        said = "the server aborted the request"
        others = sorted(name for name in sampling if name not in _CONTINUED)
        if others or len(self._pieces) >= most:
            why = f"sampled with {', '.join(others)}" if others else f"aborted {most + 1} times"
            self.forget()
            raise MalformedReply(f"{said}, and it is not continued: {why}" if most else said)
        self._pieces.append((piece, version))
        raise ReplyAborted(f"{said} after {len(piece.ids)} tokens, from which it goes on")

    def forget(self) -> None:
        """Begin anew."""
        self.prompt, self.rerendered = (), ""
        self._pieces.clear()

    def whole(self, last: Sampled, version: str | None) -> Sampled:
        """The reply whose last part is `last`."""
        if not self._pieces:
            return replace(last, policy_version=version)
        pieces = [*self._pieces, (last, version)]
        first, ids = pieces[0][0], (*self.ids, *last.ids)
        return replace(
            last,
            ids=ids,
            logprobs=round_float32(each for piece, _ in pieces for each in piece.logprobs),
            # A reply that ended before it could go on ended with what was kept.
            ended_turn=last.ended_turn and bool(last.ids),
            usage=first.usage.model_copy(update={"completion_tokens": len(ids)}),
            policy_version=version if last.ids else pieces[-2][1],
            policy_spans=_spans(pieces),
            model=last.model or first.model,
        )

    def seams(self) -> list[int]:
        """Index of the first token of each continuation."""
        found, at = [], 0
        for piece, _ in self._pieces:
            at += len(piece.ids)
            found.append(at)
        return found


def _spans(pieces: Sequence[tuple[Sampled, str | None]]) -> tuple[tuple[str, int], ...]:
    """The version of each span of tokens with its first index; () if they are all alike."""
    found: list[tuple[str | None, int]] = []
    at = 0
    for piece, version in pieces:
        if piece.ids:
            found += [(name, at + index) for name, index in piece.policy_spans] or [(version, at)]
        at += len(piece.ids)
    changes = found[:1] + [one for last, one in pairwise(found) if one[0] != last[0]]
    if len(changes) < 2:
        return ()
    return tuple((name or UNKNOWN_VERSION, at) for name, at in changes)
