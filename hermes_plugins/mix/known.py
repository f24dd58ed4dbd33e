"""Pass rates of rows, as the fleet has measured them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hermes_queue.ledger.tasks import Task, TaskMemory


@dataclass(frozen=True, slots=True)
class Measured:
    """Scored attempts at a row."""

    scored: int
    passes: int
    """Those with the full score."""
    is_poison: bool = False
    """Whether workers died under it."""


class PassRates(Protocol):
    """Whatever knows how often rows were solved."""

    def measured(
        self, env: str, item_sha256s: Sequence[str], *, model: str, policies: int | None
    ) -> list[Measured | None]:
        """Attempts of a model at each of these rows; None = nothing is known.

        Args:
            env: as jobs name it.
            item_sha256s: hashes of rows.
            model: name of the model, or `agent:KIND`.
            policies: count only its newest N policy versions; None = all.

        Raises:
            RedisUnavailable: no answer.
        """
        ...


class FromMemory:
    """What the fleet behind a Redis remembers of tasks."""

    def __init__(self, memory: TaskMemory) -> None:
        self._memory = memory

    def measured(
        self, env: str, item_sha256s: Sequence[str], *, model: str, policies: int | None
    ) -> list[Measured | None]:
        """See `PassRates`."""
        tasks = self._memory.get_many(env, item_sha256s)
        return [self._of(tasks.get(each), model, policies) for each in item_sha256s]

    @staticmethod
    def _of(task: Task | None, model: str, policies: int | None) -> Measured | None:
        if task is None:
            return None
        rate = task.rate_of(model, policies)
        return Measured(rate.scored, min(rate.passes, rate.scored), is_poison=task.deaths > 0)
