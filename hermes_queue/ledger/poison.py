"""Items under which workers died, remembered across runs as long as their dead letters."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from hermes_queue.bodies import codec
from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.answers import Claim
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.models import TrajectoryJob

POISON_MOST = 10_000


@dataclass(frozen=True, slots=True)
class PoisonItem:
    """An item of which a job was published as poison."""

    item_sha256: str
    letter_id: str
    """The dead letter of that job."""
    trajectory_id: str
    until: float
    """Unix seconds of Redis' clock at which it is forgotten."""


def item_hash(job: TrajectoryJob) -> str:
    """SHA-256 of a job's row, whether the row travels with the job or not."""
    return job.item_sha256 or codec.item_sha256(job.item or {})


def isolate(ledger: Ledger, claim: Claim, job: TrajectoryJob, *, owner: str) -> str:
    """Hand a job back to run alone if its item is known as poison; see `isolate.lua`.

    Returns:
        The id of the earlier dead letter; "" if the caller still has to run the job.
    """
    answer = ledger.call(
        "isolate",
        id=claim.trajectory_id,
        run_id=job.run_id,
        owner=owner,
        epoch=claim.epoch,
        item=item_hash(job),
    )
    return str(answer.decode())


def poison_items(ledger: Ledger) -> list[PoisonItem]:
    """The remembered items; the next one to be forgotten comes first."""
    client: Any = ledger.client
    with explained(ledger.url):
        raw = client.hgetall(ledger.key("poison"))
    facts = ((name.decode(), json.loads(value)) for name, value in raw.items())
    found = [PoisonItem(name, f["letter"], f["trajectory_id"], f["until"]) for name, f in facts]
    now = time.time()
    return sorted((each for each in found if each.until > now), key=lambda each: each.until)


def known_poison(ledger: Ledger) -> frozenset[str]:
    """Hashes of the remembered items; of more than `POISON_MOST`, none.

    Raises:
        RedisUnavailable: no answer, or this user may not ask.
    """
    client: Any = ledger.client
    with explained(ledger.url):
        if not 0 < client.hlen(ledger.key("poison")) <= POISON_MOST:
            return frozenset()
        return frozenset(name.decode() for name in client.hkeys(ledger.key("poison")))


def forget(ledger: Ledger, item_sha256: str) -> None:
    """Let jobs of an item run together with others again.

    Raises:
        ConfigurationError: it is not remembered.
    """
    with explained(ledger.url):
        if not ledger.client.hdel(ledger.key("poison"), item_sha256):
            raise ConfigurationError(
                f"no poison item {item_sha256!r} is remembered; see hermes-queue dead items"
            )
