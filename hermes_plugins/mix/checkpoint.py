"""Who serves a mix, and what it enqueues next: written down before it is enqueued.

A batch is committed under a fence, then enqueued. A producer that dies in between leaves the batch
behind, and the next one enqueues it before anything else; jobs have deterministic ids, so those
that were enqueued already are not enqueued again.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis

from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.answers import RUN_COUNTERS, RunStatus
from hermes_queue.ledger.ledger import RUN_TTL_S, Ledger

LEASE_S = 10.0
"""Time after the last beat at which a mix is free for another producer."""
BEAT_S = 2.0
POLL_S = 0.5
"""Time between two looks at a mix that another process holds. It beats at least every `BEAT_S`."""
LIVE_MAX = 2000
"""Fields of live settings that are read."""


class MixHeld(ConfigurationError):
    """Another process serves the mix."""


class MixLost(HermesQueueError):
    """Another process has taken the mix, or Redis has lost its last moments: take it again."""


@dataclass(frozen=True, slots=True)
class MixBatch:
    """The last batch that was committed."""

    seq: int
    """Its number; 0 = there was none."""
    state: str
    """How far the mix is after it, JSON."""
    pending: str
    """Its groups, JSON; some of their jobs may not be enqueued yet."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a beat brings."""

    run_state: str
    """active, paused, cancelled; "" = nothing was enqueued yet."""
    counters: RunStatus
    settings: dict[str, str]
    """Live settings by name, unchecked: every producer may write them."""


class Checkpoint:
    """One process' hold on a mix. Thread-safe."""

    def __init__(self, ledger: Ledger, name: str, marks: Mapping[str, int] | None = None) -> None:
        """`marks`: those of the backlog that the file names, `low` and `high`, for people."""
        self.ledger = ledger
        self.name = name
        self._marks = dict(marks or {})
        self.owner = secrets.token_hex(8)
        self._fence = ""

    def take(self) -> MixBatch:
        """Take the mix, or keep it; waits for the lease of a process that has died to end.

        Raises:
            MixHeld: another process serves it.
            ConfigurationError: what Redis holds of it cannot be read.
            RedisFull, RedisUnavailable: it may be taken.
        """
        first: str | None = None
        while True:
            with self._readable():
                answer = self.ledger.call(
                    "hermes_plugins.mix:take",
                    name=self.name,
                    owner=self.owner,
                    facts=json.dumps(_facts() | self._marks),
                    lease_s=LEASE_S,
                    ttl_s=RUN_TTL_S,
                )
            parts = [_text(part) for part in answer]
            verdict, fence, seq, state, pending, *who = parts
            if verdict == "taken":
                self._fence = fence
                return MixBatch(self._number(seq), state, pending)
            facts, beats, _ = who
            if first not in (None, beats):
                raise MixHeld(
                    f"mix {self.name!r} is served by {_described(facts)}; change it there with "
                    f"hermes-queue mix set {self.name} SETTING=VALUE, or end that process first"
                )
            first = beats
            time.sleep(POLL_S)

    def beat(self) -> Heard:
        """Keep the mix, and hear what has changed.

        Raises:
            MixLost: another process has it, or Redis does not know it any more.
            RedisFull, RedisUnavailable: no answer.
        """
        with self._readable():
            answer = self.ledger.call(
                "hermes_plugins.mix:beat",
                name=self.name,
                fence=self._fence,
                lease_s=LEASE_S,
                live_max=LIVE_MAX,
                counters=list(RUN_COUNTERS),
            )
        if _text(answer.verdict) != "ok":
            raise MixLost(f"mix {self.name!r} is no longer held by this process")
        flat = [_text(part) for part in answer.settings]
        return Heard(
            run_state=_text(answer.state),
            counters=RunStatus.of([_text(value) for value in answer.counters]),
            settings=dict(zip(flat[::2], flat[1::2], strict=True)),
        )

    def commit(
        self,
        batch: MixBatch,
        *,
        sources: Mapping[str, Any] | None = None,
        prints: Mapping[str, bytes] | None = None,
    ) -> None:
        """Write a batch down; may be repeated.

        `sources` is what people and the next start read about the sources, None = as before;
        `prints` are the fingerprints of the rows of those that have changed.

        Raises:
            MixLost: take the mix again, and go on from the batch that it then holds.
            RedisFull, RedisUnavailable: it may be written down.
        """
        with self._readable():
            answer = self.ledger.call(
                "hermes_plugins.mix:commit",
                name=self.name,
                fence=self._fence,
                seq=batch.seq,
                state=batch.state,
                pending=batch.pending,
                sources="" if sources is None else json.dumps(dict(sources)),
                lease_s=LEASE_S,
                ttl_s=RUN_TTL_S,
                prints=list((prints or {}).items()),
            )
        if _text(answer) != "ok":
            raise MixLost(f"mix {self.name!r}: batch {batch.seq} does not follow what Redis holds")

    def end(self, why: str) -> None:
        """Let go of the mix, so that another process need not wait for the lease."""
        with self._readable():
            self.ledger.call("hermes_plugins.mix:end", name=self.name, fence=self._fence, why=why)

    def sources(self) -> dict[str, Any]:
        """What the last start wrote about the sources; empty if it cannot be read."""
        [text] = self.ledger.hash_fields(f"mix:{self.name}", "sources")
        try:
            found = json.loads(text or "{}")
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def prints(self) -> dict[str, bytes]:
        """Fingerprints of the rows at the last start, by source."""
        client: Any = self.ledger.client
        with explained(self.ledger.url):
            found = client.hgetall(self.ledger.key(f"mix:{self.name}:rows"))
        return {name.decode(errors="replace"): value for name, value in found.items()}

    def _number(self, seq: str) -> int:
        if seq.isascii() and seq.isdecimal() and len(seq) <= 15:
            return int(seq)
        raise ConfigurationError(
            f"mix {self.name!r}: the number of its last batch cannot be read ({_plain(seq)}); "
            f"begin anew after hermes-queue mix forget {self.name}"
        )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except redis.ResponseError as error:
            raise ConfigurationError(
                f"mix {self.name!r}: what Redis holds of it is not what a mix keeps ({error}); "
                f"begin anew with another name, or after hermes-queue mix forget {self.name}"
            ) from error


def forget(ledger: Ledger, name: str) -> bool:
    """Forget how far a mix has come; whether it was known. What it has enqueued stays.

    Raises:
        MixHeld: a process serves it.
    """
    answer = _text(ledger.call("hermes_plugins.mix:forget", name=name, lease_s=LEASE_S))
    if answer == "held":
        raise MixHeld(f"mix {name!r} is being served; end its producer first")
    return answer == "forgotten"


def _facts() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": round(time.time())}


def _described(facts: str) -> str:
    try:
        known = json.loads(facts)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(known["since"]))
        return f"process {_plain(known['pid'])} on {_plain(known['host'])} since {since} UTC"
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return "another process"


def _plain(value: object) -> str:
    """For people; others may have written it."""
    return ascii(str(value)[:100])[1:-1]


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
