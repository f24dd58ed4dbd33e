"""Recomputes a record's logprobs at the server and compares them with the recorded ones.

The whole sequence is sent as one prompt, whose logprobs the server computes in one pass. If they
differ from the recorded ones, ids and logprobs do not belong together, the weights have changed,
or the server computes the two in different ways. In each case a trainer's importance ratios are
wrong from the start.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hermes_queue import extensions
from hermes_queue.agent.endpoint.choice import NO_KEY, OwnEndpoints
from hermes_queue.agent.endpoint.connection import Endpoint
from hermes_queue.agent.endpoint.errors import classify, delay_s, describe
from hermes_queue.agent.endpoint.facts import PROCESSED
from hermes_queue.agent.tokens.servers import connect, own_servers
from hermes_queue.agent.tokens.servers.base import MalformedReply, TokenServer
from hermes_queue.errors import InputError, ModelError
from hermes_queue.models import ScoredTrajectory, Turn
from hermes_queue.settings import ModelSettings

CONCURRENT_SEQUENCES = 8
"""Sequences of one record that are sent at the same time; servers batch them."""
TRIES = 3
"""Tries per sequence if the server fails or returns a malformed answer."""

_NEUTRAL = {
    "temperature": (None, 1),
    "top_k": (None, -1, 0),
    "top_p": (None, 1),
    "min_p": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
}
"""Sampling parameters that change the distribution, with the values that leave it unchanged."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between recorded and recomputed logprobs, over all sampled tokens compared."""

    tokens: int = 0
    total: float = 0.0
    """Sum of absolute differences, in nats."""
    largest: float = 0.0
    where: str = ""
    """Sequence and position of the largest difference."""
    retries: tuple[str, ...] = ()
    """The error of each answer that was requested again."""

    @property
    def mean(self) -> float:
        """Mean difference per token, in nats; 0.0 without tokens."""
        return self.total / self.tokens if self.tokens else 0.0

    def __add__(self, other: Difference) -> Difference:
        worse = other if other.largest > self.largest else self
        return Difference(
            tokens=self.tokens + other.tokens,
            total=self.total + other.total,
            largest=worse.largest,
            where=worse.where,
            retries=self.retries + other.retries,
        )


def incomparable(record: ScoredTrajectory) -> str:
    """The reason why prompt logprobs cannot be compared with the record's; "" if they can."""
    if not record.sequences:
        return "no token ids"
    for turn in record.turns:
        plain = all(turn.sampling.get(name) in values for name, values in _NEUTRAL.items())
        if turn.logprobs_mode == PROCESSED and not plain:
            return "its logprobs were taken after temperature and other sampling parameters"
    return ""


async def rescore(record: ScoredTrajectory, server: TokenServer) -> Difference:
    """Recompute the logprobs of all sampled tokens of a record.

    Raises MalformedReply, openai.OpenAIError or TimeoutError if the server does not return them.
    """
    found = Difference()
    sequences = record.sequences or ()
    for start in range(0, len(sequences), CONCURRENT_SEQUENCES):
        some = sequences[start : start + CONCURRENT_SEQUENCES]
        scored = await asyncio.gather(*(_scores(server, sequence.ids) for sequence in some))
        answers = enumerate(zip(some, scored, strict=True), start=start)
        for index, (sequence, (scores, retries)) in answers:
            place = f"{record.trajectory_id} sequence {index}"
            found += _difference(sequence.loss_mask, sequence.logprobs, scores, place)
            found += Difference(retries=retries)
    return found


async def _scores(
    server: TokenServer, ids: Sequence[int]
) -> tuple[tuple[float | None, ...], tuple[str, ...]]:
    """Scores of `ids`, and the errors of earlier tries."""
    import openai

    errors: list[str] = []
    while True:
        try:
            return await server.score(ids), tuple(errors)
        except (openai.OpenAIError, TimeoutError, MalformedReply) as error:
            errors.append(describe(error))
            if len(errors) == TRIES or classify(error, own_servers(), first_turn=True):
                raise
            await asyncio.sleep(delay_s(error, len(errors)))


def _difference(
    mask: Sequence[int], recorded: Sequence[float], scores: Sequence[float | None], place: str
) -> Difference:
    apart = {
        position: math.inf if now is None or math.isnan(now) else abs(then - now)
        for position, (sampled, then, now) in enumerate(zip(mask, recorded, scores, strict=True))
        if sampled
    }
    if not any(apart.values()):
        return Difference(len(apart))
    worst = max(apart, key=apart.__getitem__)
    return Difference(len(apart), sum(apart.values()), apart[worst], f"{place} token {worst}")


async def rescore_at(
    record: ScoredTrajectory,
    *,
    api_key: str,
    base_url: str | None = None,
    model: str | None = None,
    kind: str | None = None,
    timeout_s: float = 300.0,
) -> Difference:
    """Like `rescore`, at the endpoint, model and kind of server that the record names.

    Args:
        record: a record with sequences.
        api_key: bearer token for `base_url`. It is sent to the record's endpoint only if the
            settings trust that, because a file can name any endpoint.
        base_url: URL up to `/v1`; None to use the record's.
        model: model name; None to use the record's.
        kind: name of a token server; None to use the record's.
        timeout_s: time limit of one request.

    Raises:
        InputError: neither the record nor the caller names the endpoint, model or kind.
        ModelError: the server did not return logprobs; the message says why.
    """
    import openai

    last = record.turns[-1] if record.turns else Turn()
    settings = ModelSettings()
    if base_url is None and not (last.server and OwnEndpoints.of(settings).trust(last.server)):
        api_key = NO_KEY
    base_url, model = base_url or last.server, model or record.agent.model
    name = (last.server_version or "").partition(" ")[0]
    recorded = name if name in extensions.known("token_server") else None
    kind = kind or recorded or record.agent.params.get("server")
    if not (base_url and model and kind):
        raise InputError(
            f"{record.trajectory_id}: the record lacks its endpoint, model or kind of server; "
            "name all three"
        )
    bound = settings.answer_max_bytes
    endpoint = Endpoint(base_url, api_key, timeout_s=timeout_s, answer_max_bytes=bound)
    try:
        return await rescore(record, connect(str(kind), endpoint.post_to_root, model))
    except (openai.OpenAIError, TimeoutError, ValueError) as error:
        raise ModelError(f"{endpoint.name}: {describe(error)}") from error
