"""Pause, resume and drain of this worker, or of single lanes; whether it has to end.

A worker that takes no jobs does not consume from their queues. Celery keeps that choice across
reconnections; a restarted worker takes jobs again.
"""

from __future__ import annotations

from typing import Any, Literal

from celery import signals
from celery.worker import state as worker_state

from hermes_queue.queues import (
    queue_name,
    queues_of,
    retry_queue_name,
    served_lanes,
    stage_lanes,
)
from hermes_queue.settings import (
    LocalSandboxSettings,
    SandboxSettings,
    StageSettings,
    WorkerSettings,
)

State = Literal["open", "paused", "draining"]


class Intake:
    """The queues this process consumes from. Changed on Celery's main thread, read from any."""

    def __init__(self) -> None:
        self.hostname = ""
        """The worker's name for Celery, e.g. celery@host."""
        self.state: State = "open"
        self.paused_lanes: frozenset[str] = frozenset()
        self._served: list[str] = []
        self._queues: Any = None
        self._consumer: Any = None
        self._lent: tuple[str, ...] = ()
        """Lanes of graders to serve while these are missing."""
        self._added: list[str] = []
        """Their queues, as far as they are consumed from."""

    def serve(self, queues: Any) -> None:
        """Consume from both queues of every lane in Celery's `queues`.

        `celery worker -Q` accepts names of queues, or bare names of lanes.
        """
        self._queues = queues
        named, stages = queues_of(list(queues.consume_from)), WorkerSettings().stages
        if stages == "verify":
            named = queues_of(stage_lanes(served_lanes(named), stages))
        queues.select(named)

    def attach(self, consumer: Any) -> None:
        """Celery's consumer has a connection, and consumes from the same queues as before."""
        self._consumer = consumer

    @property
    def stands_in(self) -> tuple[str, ...]:
        """Lanes that this worker serves only while their graders are missing, or still serves."""
        return tuple(dict.fromkeys((*self._lent, *served_lanes(self._added))))

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes served now, including those paused here; first what others were to grade."""
        held = self._served if self.paused_lanes or self.state != "open" else []
        names = [] if self._queues is None else list(self._queues.consume_from)
        found, others = served_lanes([*names, *held]), self.stands_in
        return tuple(sorted(found, key=lambda lane: lane not in others)) if others else found

    @property
    def open_lanes(self) -> tuple[str, ...]:
        """The lanes from which jobs are taken now."""
        if self.state != "open" or shutdown_is_ordered():
            return ()
        return tuple(lane for lane in self.lanes if lane not in self.paused_lanes)

    def pause(self, consumer: Any, lanes: tuple[str, ...] = ()) -> None:
        """Take no more jobs of `lanes` (default: of any lane); running jobs continue.

        Raises:
            ValueError: the worker does not serve the lane, or it is draining.
        """
        self._check(consumer, lanes)
        if lanes:
            self.paused_lanes |= set(lanes)
        else:
            self.state = "paused"
        self._apply(consumer)

    def resume(self, consumer: Any, lanes: tuple[str, ...] = ()) -> None:
        """Take jobs of `lanes` (default: of all lanes) again.

        Raises:
            ValueError: the worker does not serve the lane, or it is draining.
        """
        self._check(consumer, lanes)
        self.paused_lanes -= set(lanes or self.paused_lanes)
        if not lanes:
            self.state = "open"
        self._apply(consumer)

    def drain(self, consumer: Any) -> None:
        """Take no more jobs at all: the worker ends when its last job has ended."""
        self.state = "draining"
        self._apply(consumer)

    def stand_in(self, lanes: tuple[str, ...]) -> None:
        """Serve these lanes, too, and none of those for which it has done so before. Thread-safe.

        The caller takes only open lanes into account, so that a pause ends it. It repeats the call:
        one that meets a lost connection has no effect.
        """
        consumer = self._consumer
        if consumer is not None:
            self._lent = lanes
            if queues_of(lanes) != self._added:
                consumer.hub.call_soon(self._consume_for_others, consumer)

    def _check(self, consumer: Any, lanes: tuple[str, ...]) -> None:
        if self.state == "draining":
            raise ValueError("the worker is draining: it ends with its last trajectory")
        self._note_served(consumer)
        for lane in lanes:
            if queue_name(lane) not in self._served:
                raise ValueError(f"this worker does not serve the lane {lane!r}")

    def _note_served(self, consumer: Any) -> None:
        if not self._served:
            names = list(consumer.app.amqp.queues.consume_from)
            self._served = [name for name in names if name not in self._added]

    def _apply(self, consumer: Any) -> None:
        self._note_served(consumer)
        # Deferred: while Celery reads this command's own message, it postpones the cancellation,
        # which would then also remove queues added in the meantime.
        consumer.hub.call_soon(self._consume, consumer)

    def _consume(self, consumer: Any) -> None:
        names = (retry_queue_name, queue_name)
        held = {name(lane) for lane in self.paused_lanes for name in names}
        open_queues = [name for name in self._served if self.state == "open" and name not in held]
        # In between, threads that ask for `lanes` see too few: the next heartbeat has them again.
        for name in self._served:
            consumer.cancel_task_queue(name)
        for name in open_queues:  # all of them again: their order is the order of polling
            consumer.add_task_queue(name)
        self._consume_for_others(consumer)

    def _consume_for_others(self, consumer: Any) -> None:
        wanted = queues_of(self._lent) if self.state == "open" else []
        for name in self._added:
            if name not in wanted:
                consumer.cancel_task_queue(name)
        for name in wanted:
            if name not in self._added:
                queue = consumer.app.amqp.queues[name]  # made as those of the command line are
                consumer.add_task_queue(queue.name)
        self._added = wanted


INTAKE = Intake()
"""The intake of this process."""


@signals.worker_init.connect  # type: ignore[untyped-decorator]
def _serve_queues(sender: Any, **_: Any) -> None:
    INTAKE.hostname = str(sender.hostname)
    if sender.app.main == "hermes_queue":  # the pool also serves other apps
        INTAKE.serve(sender.app.amqp.queues)


def within_slots(limit: int) -> int:
    """Cap `limit` at the number of slots of the sandbox backend.

    A job that would only wait for a slot is better left to another worker.
    """
    slots = LocalSandboxSettings().slots if SandboxSettings().backend == "local" else 0
    return min(limit, slots) if slots else limit


def with_prefetch(agents: int) -> int:
    """Number of jobs that a worker takes: those of its agents, and what it sets up ahead."""
    if WorkerSettings().stages == "verify":
        return agents
    return within_slots(agents + StageSettings().prefetch)


def shutdown_is_ordered() -> bool:
    """Whether a signal or remote control has ordered this worker to end, warm or cold."""
    return _is_set(worker_state.should_stop) or _is_set(worker_state.should_terminate)


def shutdown_is_cold() -> bool:
    """Whether this worker is to end at once, without waiting for its jobs."""
    return _is_set(worker_state.should_terminate)


def _is_set(flag: object) -> bool:
    return flag is not None and flag is not False  # Celery's flags hold exit codes: 0 is set
