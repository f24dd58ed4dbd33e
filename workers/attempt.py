"""One attempt: what it is given, and what its stages make of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hermes_queue.agent.endpoint.limiter import Limiter, Unlimited
from hermes_queue.agent.loop import BeforeTurn
from hermes_queue.agent.programs.program import Program
from hermes_queue.sandbox.base import SandboxBackend, SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.settings import ModelSettings
from workers.bounds.limits import NO_LIMITS, StageLimits
from workers.draft import Draft
from workers.steps.progress import StepProgress

if TYPE_CHECKING:
    from workers.hooks import After
    from workers.resume.journal import TurnJournal
    from workers.stages.handover import HandOver


@dataclass(frozen=True, slots=True)
class Services:
    """What all attempts of a process share."""

    backend: SandboxBackend
    model: ModelSettings
    """Defaults of model endpoints."""
    imports: str = "*"
    """Modules that a job may name; see `workers.imports.import_named`."""
    bounds: StageLimits = NO_LIMITS
    """Limits of the stages that a job does not limit itself."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt at a trajectory, which `workers.rollout.rollout` runs."""

    draft: Draft
    """Receives transcript, verdict and stage times, of a failed attempt too."""
    row: Mapping[str, Any]
    """The dataset row."""
    services: Services
    on_measured: Callable[[], Awaitable[None]]
    """Awaited with the verdict in place, before the slot is reset, and again when `after` has made
    it final; the first time only if it counts without (`draft.is_provisional`)."""
    before_turn: BeforeTurn | None = None
    """Awaited before each call of a model. It counts towards no deadline."""
    limiter: Limiter = field(default_factory=Unlimited)
    """Permits each call of a model. Waiting for it counts towards no deadline either."""
    definition: Mapping[str, Any] | None = None
    """The agent's program, if the job names it by its hash."""
    journal: TurnJournal | None = None
    """Continues the turns of an earlier attempt, and keeps those of this one."""
    handover: HandOver | None = None
    """Gives the agent's work to a worker that grades it, or has that of another one."""

    # --- what the stages make
    steps: StepProgress = field(init=False)
    """Made by `load`, with the env and its items."""
    program: Program | None = None
    """The agent's, if it is one in the slot; made by `load`."""
    spec: SlotSpec = field(init=False)
    """What the agent's slot must be; made by `load`."""
    after: tuple[After, ...] = ()
    """What sees the verdict before it is final; made by `load`."""
    context: SlotContext = field(init=False)
    """The slot; made by `acquire`."""

    def __post_init__(self) -> None:
        if self.before_turn:
            self.before_turn = self.draft.clock.not_counting(self.before_turn)
