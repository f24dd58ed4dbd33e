"""The long-living producer of a mix: keeps the backlog between two marks."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from hermes_plugins.mix.blend import Blend, Group
from hermes_plugins.mix.checkpoint import (
    BEAT_S,
    Checkpoint,
    Heard,
    MixBatch,
    MixHeld,
    MixLost,
)
from hermes_plugins.mix.document import MixDocument
from hermes_plugins.mix.known import PassRates
from hermes_plugins.mix.sources import MixSource
from hermes_plugins.mix.state import pending_text, read_pending, read_state
from hermes_plugins.mix.store import differences, fingerprint
from hermes_plugins.mix.tuning import LiveSettings
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.errors import ConfigurationError, RedisFull, RedisUnavailable
from hermes_queue.ledger import Ledger, Runs
from hermes_queue.ledger.accounts.drift import set_max_drift
from hermes_queue.ledger.budgets import set_budgets
from hermes_queue.ledger.fleet.pacing import set_pace
from hermes_queue.settings import ProducerSettings

logger = logging.getLogger(__name__)

LOOK_S = 0.5
"""Time between two looks at the backlog while it is full."""
HEAR_S = 0.2
"""Time between two looks at backlog and settings while it fills up."""
OUTAGE_S = 2.0
"""Time between two tries while Redis does not answer."""
SAY_S = 60.0


class MixStopped(Exception):
    """The process was stopped."""


class MixServer:
    """Serves one mix. `say` gets lines for people."""

    def __init__(
        self,
        ledger: Ledger,
        document: MixDocument,
        *,
        rates: PassRates,
        say: Callable[[str], None],
        stop: threading.Event,
        settings: ProducerSettings | None = None,
    ) -> None:
        self._ledger, self._document = ledger, document
        self._rates, self._say, self._stop = rates, say, stop
        self._settings = settings or ProducerSettings()
        self._sources: Mapping[str, MixSource] = {}
        self._said: tuple[str, ...] = ()
        self._described: dict[str, Any] = {}
        self._is_described = False
        self._prints: dict[str, bytes] = {}
        self._said_at = time.monotonic()
        self.checkpoint = Checkpoint(ledger, document.name, document.backlog.model_dump())
        self.enqueued = 0

    def serve(self, sources: Mapping[str, MixSource]) -> bool:
        """Keep the backlog between its marks; True = every source is done, False = stopped.

        An outage of Redis is waited for.

        Raises:
            MixHeld: another process serves the mix.
            ConfigurationError: its run is cancelled, or was begun with other settings.
        """
        self._sources = sources
        self._prepare()
        while not self._stop.is_set():
            try:
                if self._go_on():
                    return True
            except (RedisUnavailable, RedisFull) as error:
                self._say(f"waiting for Redis: {error}")
                self._stop.wait(OUTAGE_S)
            except MixLost as error:
                self._say(f"{error}; going on from what Redis holds")
                self._stop.wait(HEAR_S)
            except MixStopped:
                break
        return False

    def _prepare(self) -> None:
        """Compare with the last start, and set what belongs to the run."""
        checkpoint, name = self.checkpoint, self._document.name
        checkpoint.take()
        self._refuse_cancelled(checkpoint.beat())
        known, prints = checkpoint.sources(), checkpoint.prints()
        for source in self._sources.values():
            self._refuse_other_config(source, known)
            now, before = fingerprint(source.items), prints.get(source.name)
            if before != now:
                self._prints[source.name] = now
            if before is not None and (what := differences(before, now)):
                self._say(f"sources.{source.name}: {what}")
            elif known and source.name not in known:
                self._say(f"sources.{source.name}: is new")
        for gone in sorted(known.keys() - self._sources.keys()):
            self._say(f"sources.{gone}: is no longer in the file; nothing more of it is enqueued")
        settings = self._document.settings()
        self._described = {
            each.name: {
                "rows": len(each.items),
                "group_jobs": each.group_jobs,
                "settings": asdict(settings.sources[each.name]),
                "epochs": each.table.epochs,
                "sampler": each.table.sampler.kind,
                "config": each.config,
            }
            for each in self._sources.values()
        }
        budgets, max_drift = self._document.budgets.given(), self._document.max_drift
        if budgets:
            set_budgets(self._ledger, name, budgets)
            self._resume("budget")
        if max_drift is not None:
            set_max_drift(self._ledger, name, max_drift)
            self._resume("drift")
        if self._document.max_ahead:
            set_pace(self._ledger, name, self._document.max_ahead)

    def _resume(self, paused_by: str) -> None:
        """Go on with a run that a budget, or drift, has paused: the file says anew what it may."""
        runs, name = Runs(self._ledger), self._document.name
        pause = runs.paused(name)
        if pause and pause.by == paused_by:
            try:
                runs.resume(name)
            except ConfigurationError as error:
                self._say(str(error))

    def _refuse_other_config(self, source: MixSource, known: Mapping[str, Any]) -> None:
        before = known.get(source.name)
        old = before.get("config") if isinstance(before, dict) else None
        if not isinstance(old, dict):
            return
        new = source.config
        if names := sorted(n for n in {*old, *new} if old.get(n) != new.get(n)):
            differing = ", ".join(f"{n} {old.get(n)!r} (now {new.get(n)!r})" for n in names)
            raise ConfigurationError(
                f"sources.{source.name}: mix {self._document.name!r} was begun with {differing}; "
                "give it the same, or add a source with another name"
            )

    def _go_on(self) -> bool:
        """From what Redis holds to the end; True = every source is done."""
        self._ledger.refuse_eviction()
        batch = self.checkpoint.take()
        name, self._is_described = self._document.name, False
        blend = Blend(
            self._sources,
            read_state(batch.state, name),
            seed=self._document.seed,
            share=self._document.share,
            rates=self._rates,
        )
        self._send_again(blend, batch)
        if batch.seq:
            drawn = sum(each.items for each in blend.state.sources.values())
            self._say(f"mix {name}: goes on after {drawn} groups")
        filling, heard_at = True, -math.inf
        while True:
            if time.monotonic() - heard_at >= HEAR_S:
                waiting, settings = self._hear(blend)
                heard_at = time.monotonic()
            if settings.pause or waiting >= settings.high:
                filling = False
            elif waiting <= settings.low:
                filling = True
            groups = self._draw(blend, settings.high - waiting) if filling else []
            if groups:
                batch = self._commit(batch, blend, groups)
                self._send(groups)
                waiting += sum(len(group.jobs) for group in groups)  # until it hears more
                continue
            if blend.over and not settings.pause:
                self._write_down(batch, blend)
                return True
            if self._stop.wait(LOOK_S):
                raise MixStopped
            heard_at = -math.inf

    def _hear(self, blend: Blend) -> tuple[int, LiveSettings]:
        """Trajectories that wait, and the settings in force."""
        if self._stop.is_set():
            raise MixStopped
        heard = self.checkpoint.beat()
        self._refuse_cancelled(heard)
        settings, refused = self._document.settings().changed_by(heard.settings)
        lines = tuple(f"ignored: {why}" for why in dict.fromkeys(refused.values())) + tuple(
            f"set: {name}={value}"
            for name, value in sorted(heard.settings.items())
            if name not in refused
        )
        for line in lines:
            if line not in self._said:
                self._say(line)
        self._said = lines
        blend.heed(settings)
        self._report(blend, heard)
        return heard.counters.queued, settings

    def _refuse_cancelled(self, heard: Heard) -> None:
        name = self._document.name
        if heard.run_state == "cancelled":
            raise ConfigurationError(
                f"run {name!r} was cancelled; choose another name for the mix, or forget both: "
                f"hermes-queue run purge {name}; hermes-queue mix forget {name}"
            )

    def _draw(self, blend: Blend, room: int) -> list[Group]:
        groups: list[Group] = []
        jobs = 0
        while jobs < min(room, self._settings.batch) and (group := blend.draw()):
            groups.append(group)
            jobs += len(group.jobs)
        return groups

    def _commit(self, before: MixBatch, blend: Blend, groups: Sequence[Group]) -> MixBatch:
        pending = pending_text([group.drawn for group in groups])
        batch = MixBatch(before.seq + 1, blend.state.model_dump_json(), pending)
        sources = None if self._is_described else self._described
        self.checkpoint.commit(batch, sources=sources, prints=self._prints)
        self._is_described, self._prints = True, {}
        return batch

    def _write_down(self, before: MixBatch, blend: Blend) -> None:
        """The state of a mix that is over; its last rows may have been passed over."""
        self._commit(before, blend, [])

    def _send_again(self, blend: Blend, batch: MixBatch) -> None:
        """Enqueue what a process that has died may have left of its last batch."""
        groups = []
        for each in blend.again(read_pending(batch.pending, self._document.name)):
            if isinstance(each, str):
                self._say(each)
            else:
                groups.append(each)
        if groups:
            self._send(groups)

    def _send(self, groups: Sequence[Group]) -> None:
        items: dict[str, bytes] = {}
        for group in groups:
            items |= group.items
        done = enqueue(
            (job for group in groups for job in group.jobs),
            ledger=self._ledger,
            settings=self._settings,
            config={"producer": "mix", "seed": self._document.seed},
            items=items,
            on_full=self._on_full,
            checks_eviction=False,
            part=self._document.part,
        )
        self.enqueued += done.enqueued

    def _on_full(self, waiting: int) -> None:
        if self._stop.is_set():
            raise MixStopped
        if time.monotonic() - self._said_at > SAY_S:
            self._said_at = time.monotonic()
            self._say(f"{waiting} jobs of all runs wait (HERMES_QUEUE_PRODUCER_BACKLOG_MAX)")

    def _report(self, blend: Blend, heard: Heard) -> None:
        if time.monotonic() - self._said_at < SAY_S:
            return
        self._said_at = time.monotonic()
        parts = [
            f"{name} {state.items} ({blend.standing(name)})"
            for name, state in blend.state.sources.items()
            if name in self._sources
        ]
        self._say(f"{heard.counters.queued} waiting; groups so far: {', '.join(parts)}")


class MixKeeper:
    """Keeps a mix while its process reads rows, or waits; a context manager."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="mix-keeper", daemon=True)

    def __enter__(self) -> MixKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._done.wait(BEAT_S):
            # Whoever enqueues notices by itself, and says so.
            with suppress(RedisUnavailable, RedisFull, MixLost, MixHeld, ConfigurationError):
                self._checkpoint.beat()
