"""A record in the making: filled stage by stage, so that a failure keeps what there was."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envs.base import Verdict
from hermes_queue.agent.loop import AgentResult, total
from hermes_queue.agent.prices import cost_usd
from hermes_queue.errors import SlotKilled, Stage, TrajectoryFailure
from hermes_queue.ledger import Begun, Spent
from hermes_queue.ledger.answers import NOTHING_SPENT
from hermes_queue.ledger.attempts import unpacked
from hermes_queue.models import AttemptRecord, TrajectoryJob, Usage
from hermes_queue.sandbox.base import Slot
from hermes_queue.wire.names import VERIFY
from workers.clock import Clock, HasPlaces
from workers.goodput.rent import Rent
from workers.resume.kept import Kept


@dataclass(slots=True)
class Draft:
    """What is known so far of one attempt."""

    job: TrajectoryJob
    attempt: int
    epoch: int
    queued_at: float | None = None
    """Since when it waited for this attempt; this and the next in Unix seconds by Redis' clock."""
    begun_at: float | None = None
    earlier: tuple[AttemptRecord, ...] = ()
    """Attempts before it that failed, without their transcripts."""
    packed_attempts: tuple[bytes, ...] = ()
    """The same with them."""
    prices: Path | None = None
    """The table of prices of models."""
    policy_begun: int | None = None
    """The run's policy version when the attempt began."""
    clock: Clock = field(default_factory=Clock)
    rent: Rent = field(default_factory=Rent)
    """What its slot costs."""
    on_leased: Callable[[], None] | None = None
    """Called when it has a slot."""
    agent: AgentResult = field(default_factory=AgentResult)
    tools: tuple[dict[str, Any], ...] = ()
    env_version: str = ""
    sandbox_id: str | None = None
    image: str | None = None
    """What the sandbox was made of, as its backend says."""
    package: tuple[str, ...] = ()
    """Import names of the package under test, which is hidden from its agent elsewhere."""
    verdict: Verdict | None = None
    evaluation: bool = False
    """Whether its item says that nothing may be trained on it."""
    counts_journal: bool = False
    """Whether `spent` has what was not booked of the journal of an earlier attempt."""
    leased_at: float = field(default_factory=time.monotonic)
    """About when its lease was taken, on the monotonic clock."""
    is_accounted: bool = False
    """Whether the time of its slot was reported."""
    kept_turns: int = 0
    """Turns that it continues: their time belongs to the lease in which they were sampled."""
    kept_waited_s: float = 0.0
    """Seconds of waits in these turns, which belong to that lease, too."""
    kept_agent_s: float = 0.0
    """Seconds of the agent in turns that it continues; they count towards its limit."""
    booked: Usage = field(default_factory=Usage)
    """Tokens of such turns that count in the run's budgets already."""
    is_handed: bool = False
    """Whether its agent is done, in another worker: it is only measured here."""
    work: bytes | None = None
    """What the env took out of the agent's slot; None = the work is in the slot."""
    handed_seconds: dict[str, float] = field(default_factory=dict)
    """Stage seconds in the worker of its agent, and `verify_queue`: the wait for this worker."""
    handed_usd: float = 0.0
    """Price of the slot in the worker of its agent."""
    lost: Usage = field(default_factory=Usage)
    """Tokens of an ended worker's turns that it does not continue. They are in no record."""

    is_provisional: bool = False
    """Whether its verdict counts as it is only if no hook makes it final."""
    after_failure: TrajectoryFailure | None = None
    """Why a hook could not do its part, such as a judge. No failure of the attempt itself."""
    after_spent: Spent = NOTHING_SPENT
    """What the hooks have paid for calls of models."""

    @classmethod
    def of(
        cls,
        job: TrajectoryJob,
        begun: Begun,
        *,
        prices: Path | None = None,
        on_stage: Callable[[Stage], None] | None = None,
        places: HasPlaces | None = None,
        on_leased: Callable[[], None] | None = None,
    ) -> Draft:
        """Of the attempt whose lease is `begun`."""
        return cls(
            job=job,
            attempt=begun.attempt,
            epoch=begun.epoch,
            earlier=tuple(unpacked(begun.attempts, transcripts=False)),
            packed_attempts=begun.attempts,
            prices=prices,
            policy_begun=begun.policy_version,
            queued_at=begun.queued_at,
            begun_at=begun.begun_at,
            on_leased=on_leased,
            clock=Clock(
                job.limits.total_timeout_s - begun.used_s, on_stage=on_stage, places=places
            ),
        )

    def __post_init__(self) -> None:
        if self.queued_at is not None and self.begun_at is not None:
            waited_s = max(0.0, self.begun_at - self.queued_at)
            self.clock.stage_seconds["queue"] = round(waited_s, 4)

    @property
    def slot_killed_before(self) -> bool:
        """Whether an earlier attempt ended because its agent's commands had killed the slot."""
        return self.killed_in("agent")

    def killed_in(self, *stages: Stage) -> bool:
        """Whether something in the slot of an earlier attempt killed it in one of these stages."""
        failures = [each.failure for each in self.earlier]
        return any(each.stage in stages and each.kind == SlotKilled.kind for each in failures)

    @property
    def spent(self) -> Spent:
        """What the attempt has used of the run's budgets so far."""
        models = self._unbooked(total([self.agent.usage, self.lost])) + self.after_spent
        return models + Spent(0, self.rent.usd)

    def spent_in(self, turns: int) -> Spent:
        """The same, of its own turns for the first ones alone."""
        own = (turn.usage for turn in self.agent.turns[:turns])
        return self._unbooked(total([*own, self.lost]))

    def _unbooked(self, usage: Usage) -> Spent:
        booked = self.booked
        cost = self.cost_usd(usage)
        spent = Spent.of(usage, cost)
        if not booked.prompt_tokens and not booked.completion_tokens:
            return spent
        if usage == booked:  # of an unknown price, too: that is booked as well
            return NOTHING_SPENT
        past = Spent.of(booked, self.cost_usd(booked))
        left_usd = None if cost is None else max(0.0, cost - (past.cost_usd or 0.0))
        return Spent(max(0, spent.tokens - past.tokens), left_usd)

    def leased(self, slot: Slot) -> None:
        """Its slot is there: the clock starts, and the slot has to be paid for."""
        self.sandbox_id, self.image = slot.sandbox_id, slot.image
        self.clock.start()
        self.rent.begin(slot)
        if self.on_leased:
            self.on_leased()

    def pay_for(self, lost: Usage) -> None:
        """Count the journal of an earlier attempt, with these turns that are not continued."""
        self.counts_journal, self.lost = True, lost

    def continue_from(self, result: AgentResult, kept: Kept, booked_epoch: int) -> None:
        """Continue turns of an earlier attempt: their tokens, cost and time count as they did.

        `result`: what the agent had done after them. `booked_epoch`: see `Begun`.
        """
        agent, last = self.agent, kept.last
        self.kept_turns, self.kept_waited_s = len(result.turns), result.waited_s
        for name in ("messages", "turns", "events"):
            getattr(agent, name).extend(getattr(result, name))
        for name in ("attempted", "schema_valid", "ok", "error", "waited_s"):
            setattr(agent, name, getattr(result, name))
        self.kept_agent_s = last.agent_s
        self.booked = kept.usage(booked_epoch)
        self.policy_begun = last.policy_begun
        known_s = self.job.limits.total_timeout_s - self.clock.total_s
        self.clock.carry(max(0.0, last.used_s - known_s))
        agent.changed()

    @property
    def lane(self) -> str:
        """The lane in which it waited: that of agents, or of graders."""
        return f"{self.job.lane}{VERIFY}" if self.is_handed else self.job.lane

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Seconds per stage, those in the worker of its agent included."""
        if not self.is_handed:
            return self.clock.stage_seconds
        seconds = dict(self.handed_seconds)
        for name, own_s in self.clock.stage_seconds.items():
            seconds[name] = round(seconds.get(name, 0.0) + own_s, 4)
        return seconds

    def cost_usd(self, usage: Usage) -> float | None:
        """Cost of `usage` with the job's model, in US dollars; None if the price is unknown."""
        return cost_usd(self.job.agent.model, usage, self.prices)

    @property
    def total_usd(self) -> float | None:
        """Cost of agent, hooks and slot; None if the price of one is unknown."""
        models = Spent(0, self.cost_usd(self.agent.usage)) + self.after_spent
        return (models + Spent(0, self.sandbox_usd)).cost_usd

    @property
    def sandbox_usd(self) -> float:
        """Price of its slots, here and in the worker of its agent."""
        return self.handed_usd + self.rent.usd

    @property
    def lost_sandboxes(self) -> int:
        """Earlier attempts that ended because a sandbox failed."""
        return self._failed_by("sandbox")

    @property
    def endpoint_failures(self) -> int:
        """Earlier attempts that ended because a model endpoint failed."""
        return self._failed_by("model")

    def _failed_by(self, cause: str) -> int:
        return sum(attempt.failure.cause == cause for attempt in self.earlier)
