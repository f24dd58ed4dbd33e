"""Ask the server again: do the sequences of a record have the logprobs that were recorded?

The whole sequence goes to the server as one prompt, whose logprobs it computes in one pass. Where
they differ from those of the sampling, ids and logprobs do not belong together, the weights are
others, or the server computes the two in different ways; in each case a trainer's importance
ratios are wrong from the start.
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
from hermes_queue.agent.endpoint.values import MalformedReply
from hermes_queue.agent.tokens.servers import load_server, own_servers
from hermes_queue.agent.tokens.servers.base import TokenServer
from hermes_queue.errors import InputError, ModelError
from hermes_queue.models import ScoredTrajectory, Turn
from hermes_queue.settings import ModelSettings

AT_ONCE = 8
"""Sequences of one record that are sent without waiting for each other; servers batch them."""
TRIES = 3
"""Of one sequence, where the server failed or answered something else."""

_NEUTRAL = {
    "temperature": (None, 1),
    "top_k": (None, -1, 0),
    "top_p": (None, 1),
    "min_p": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
}
"""Sampling parameters that change a distribution, and the values with which they do not."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Between recorded and recomputed logprobs, over all sampled tokens of something."""

    tokens: int = 0
    total: float = 0.0
    """Sum of absolute differences, in nats."""
    largest: float = 0.0
    where: str = ""
    """Of the largest: sequence and position."""
    again: tuple[str, ...] = ()
    """What was wrong with each answer that had to be asked for again."""

    @property
    def mean(self) -> float:
        """Per token; 0.0 of none."""
        return self.total / self.tokens if self.tokens else 0.0

    def __add__(self, other: Difference) -> Difference:
        worse = other if other.largest > self.largest else self
        return Difference(
            tokens=self.tokens + other.tokens,
            total=self.total + other.total,
            largest=worse.largest,
            where=worse.where,
            again=self.again + other.again,
        )


def incomparable(record: ScoredTrajectory) -> str:
    """Why prompt logprobs say nothing about those of the record; "" if they do."""
    if not record.sequences:
        return "no token ids"
    if any(turn.logprobs_mode == PROCESSED and not _plain(turn) for turn in record.turns):
        return "its logprobs are of a distribution after temperature and the like"
    return ""


def _plain(turn: Turn) -> bool:
    return all(turn.sampling.get(name) in values for name, values in _NEUTRAL.items())


async def rescore(record: ScoredTrajectory, server: TokenServer) -> Difference:
    """Recompute the logprobs of all sampled tokens of a record.

    Raises:
        MalformedReply: the server does not give them.
        openai.OpenAIError: as the SDK does.
        TimeoutError: the server took too long.
    """
    found = Difference()
    sequences = record.sequences or ()
    for start in range(0, len(sequences), AT_ONCE):
        some = sequences[start : start + AT_ONCE]
        scored = await asyncio.gather(*(_scores(server, sequence.ids) for sequence in some))
        answers = enumerate(zip(some, scored, strict=True), start=start)
        for index, (sequence, (scores, again)) in answers:
            place = f"{record.trajectory_id} sequence {index}"
            found += _difference(sequence.loss_mask, sequence.logprobs, scores, place)
            found += Difference(again=again)
    return found


async def _scores(
    server: TokenServer, ids: Sequence[int]
) -> tuple[tuple[float | None, ...], tuple[str, ...]]:
    """Scores of `ids`, and what was wrong with the answers before."""
    import openai

    again: list[str] = []
    while True:
        try:
            return await server.score(ids), tuple(again)
        except (openai.OpenAIError, TimeoutError, MalformedReply) as error:
            again.append(describe(error))
            if len(again) == TRIES or classify(error, own_servers(), first_turn=True):
                raise
            await asyncio.sleep(delay_s(error, len(again)))


def _difference(
    mask: Sequence[int], recorded: Sequence[float], scores: Sequence[float | None], place: str
) -> Difference:
    found = Difference()
    triples = zip(mask, recorded, scores, strict=True)
    for position, (sampled, then, now) in enumerate(triples):
        if not sampled:
            continue
        apart = math.inf if now is None or math.isnan(now) else abs(then - now)
        found += Difference(1, apart, apart, f"{place} token {position}")
    return found


async def rescore_at(
    record: ScoredTrajectory,
    *,
    api_key: str,
    base_url: str | None = None,
    model: str | None = None,
    kind: str | None = None,
    timeout_s: float = 300.0,
) -> Difference:
    """As `rescore`, at the endpoint, model and kind of server that the record names.

    Args:
        record: with sequences.
        api_key: sent as bearer to `base_url`; to the record's own endpoint only where the settings
            trust it, since a file can name any.
        base_url: up to `/v1`, in place of the record's.
        model: in place of the record's.
        kind: name of a token server, in place of the record's.
        timeout_s: of one request.

    Raises:
        InputError: the record does not name one of the three, and the caller neither.
        ModelError: the server did not give logprobs; the message says why.
    """
    import openai

    last = record.turns[-1] if record.turns else Turn()
    settings = ModelSettings()
    if base_url is None and not (last.server and OwnEndpoints.of(settings).trust(last.server)):
        api_key = NO_KEY
    base_url, model = base_url or last.server, model or record.agent.model
    said = (last.server_version or "").partition(" ")[0]
    recorded = said if said in extensions.known("token_server") else None
    kind = kind or recorded or record.agent.params.get("server")
    if not (base_url and model and kind):
        raise InputError(
            f"{record.trajectory_id}: the record does not tell endpoint, model and kind of server; "
            "name them"
        )
    bound = settings.answer_max_bytes
    endpoint = Endpoint(base_url, api_key, timeout_s=timeout_s, answer_max_bytes=bound)
    try:
        server = load_server(str(kind)).connect(endpoint.post_to_root, model)
        return await rescore(record, server)
    except (openai.OpenAIError, TimeoutError, ValueError) as error:
        raise ModelError(f"{endpoint.name}: {describe(error)}") from error
