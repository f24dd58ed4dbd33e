"""Mixes as people see them. Everything here was written by producers, and may be anything."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import redis

from hermes_plugins.mix.checkpoint import LEASE_S, LIVE_MAX
from hermes_plugins.mix.tuning import BACKLOG_MAX, SOURCE_NAME, unknown_mix
from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.answers import RUN_COUNTERS, RunStatus, number_in
from hermes_queue.ledger.ledger import Ledger

NAMES_MAX = 1000
TEXT_BYTES_MAX = 32 << 20
"""Longer texts are of no producer of ours, and are not read."""
_LIVE_BYTES_MAX = 100
"""Of one live setting, which is a number or a word."""
_FIELDS = ("fence", "owner", "facts", "until", "ended", "sources", "state")


@dataclass(frozen=True, slots=True)
class ShownSource:
    """One source of a mix."""

    rows: int
    group_jobs: int
    sampler: str
    epochs: int | None
    weight: float
    quota_items: int | None
    quota_trajectories: int | None
    pause: bool
    items: int
    """Groups so far."""
    trajectories: int
    epoch: int
    looked: dict[str, int]
    """Rows of this epoch that were looked at, by what their pass rates say."""
    live: dict[str, str] = field(default_factory=dict)
    """Its settings that were changed while it was served, as they were given."""


@dataclass(frozen=True, slots=True)
class ShownMix:
    """One mix."""

    name: str
    served_by: dict[str, Any]
    """Host, pid and start of its producer; empty = nobody serves it."""
    ended: str
    """Why its last producer ended; "" = it is served, or its producer died."""
    waiting: int
    """Trajectories that wait for a worker."""
    running: int
    finished: int
    marks: dict[str, int]
    """Those of the backlog that the file of its last start names, `low` and `high`."""
    live: dict[str, str]
    """Settings of the mix that were changed."""
    sources: dict[str, ShownSource]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def mix_names(ledger: Ledger) -> list[str]:
    """Known mixes, the one that was started last first."""
    client: Any = ledger.client
    with explained(ledger.url):
        found = client.zrevrange(ledger.key("mixes"), 0, NAMES_MAX - 1)
    return [name.decode(errors="replace") for name in found]


def find_mix(ledger: Ledger, name: str, *, text_bytes_max: int = TEXT_BYTES_MAX) -> ShownMix:
    """A mix; without its sources if what is written of them is longer than `text_bytes_max`.

    Raises:
        ConfigurationError: it is unknown, or what Redis holds of it is no mix.
    """
    client: Any = ledger.client
    try:
        with explained(ledger.url), client.pipeline(transaction=False) as pipe:
            for each in _FIELDS:
                pipe.hstrlen(ledger.key(f"mix:{name}"), each)
            lengths = pipe.execute()
            fields = [f for f, n in zip(_FIELDS, lengths, strict=True) if n <= text_bytes_max]
            pipe.hmget(ledger.key(f"mix:{name}"), fields)
            pipe.hlen(ledger.key(f"mix:{name}:live"))
            pipe.hmget(ledger.key(f"run:{name}"), RUN_COUNTERS)
            pipe.time()
            raw, count, counters, (seconds, _) = pipe.execute()
            live = _read_live(client, ledger.key(f"mix:{name}:live")) if count <= LIVE_MAX else {}
    except redis.ResponseError as error:
        raise ConfigurationError(
            f"mix {name!r}: what Redis holds of it is no mix ({error})"
        ) from error
    known = dict.fromkeys(_FIELDS, "")
    known |= {n: (v or b"").decode(errors="replace") for n, v in zip(fields, raw, strict=True)}
    if not known["fence"]:
        raise unknown_mix(name)
    is_live = bool(known["owner"]) and 0 < number_in(known["until"]) - seconds <= LEASE_S + 1
    settings = {
        _printable(k.decode(errors="replace")): _printable(v.decode(errors="replace"))
        for k, v in live.items()
    }
    run = RunStatus.of([value.decode() if value else "" for value in counters])
    return ShownMix(
        name=name,
        served_by=_plain(_object(known["facts"])) if is_live else {},
        ended=_printable(known["ended"]),
        waiting=run.queued,
        running=run.running,
        finished=run.finished,
        marks=_marks(_object(known["facts"])),
        live={k: v for k, v in settings.items() if "." not in k},
        sources=_sources(_object(known["sources"]), _object(known["state"]), settings),
    )


def _read_live(client: Any, key: str) -> dict[bytes, bytes]:
    """The live settings, without those that are too long to be one."""
    names = client.hkeys(key)
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.hstrlen(key, name)
        lengths = pipe.execute()
    short = [name for name, size in zip(names, lengths, strict=True) if size <= _LIVE_BYTES_MAX]
    values = client.hmget(key, short) if short else []
    return {name: value for name, value in zip(short, values, strict=True) if value is not None}


def _sources(
    described: Mapping[str, Any], state: Mapping[str, Any], live: Mapping[str, str]
) -> dict[str, ShownSource]:
    states = _object(state.get("sources"))
    found = {}
    for name, each in described.items():
        if not re.fullmatch(SOURCE_NAME, name):
            continue
        try:
            found[name] = _source(each, _object(states.get(name)), _of_source(live, name))
        except (LookupError, TypeError, ValueError, OverflowError):
            continue  # no producer of ours wrote this
    return found


def _of_source(live: Mapping[str, str], name: str) -> dict[str, str]:
    begin = f"{name}."
    return {key.removeprefix(begin): value for key, value in live.items() if key.startswith(begin)}


def _source(each: Any, state: Mapping[str, Any], live: dict[str, str]) -> ShownSource:
    settings = each["settings"]
    return ShownSource(
        rows=int(each["rows"]),
        group_jobs=int(each["group_jobs"]),
        sampler=_printable(str(each["sampler"])),
        epochs=_quota(each["epochs"]),
        weight=float(live.get("weight", settings["weight"])),
        quota_items=_quota(live.get("items", settings["items"])),
        quota_trajectories=_quota(live.get("trajectories", settings["trajectories"])),
        pause=str(live.get("pause", settings["pause"])).lower() == "true",
        items=int(state.get("items", 0)),
        trajectories=int(state.get("jobs", 0)),
        epoch=int(state.get("epoch", 1)),
        looked={_printable(str(k)[:20]): int(v) for k, v in _object(state.get("looked")).items()},
        live=live,
    )


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    """Host, process and start of a producer, whoever wrote them."""
    numbers = {name: facts.get(name) for name in ("pid", "since")}
    known = {name: n for name, n in numbers.items() if isinstance(n, int) and 0 < n < 1 << 40}
    return {"host": _printable(str(facts.get("host"))), **known}


def _marks(facts: dict[str, Any]) -> dict[str, int]:
    numbers = {name: facts.get(name) for name in ("low", "high")}
    return {k: n for k, n in numbers.items() if isinstance(n, int) and 0 <= n <= BACKLOG_MAX}


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:100])


def _quota(value: Any) -> int | None:
    return None if value is None else int(value)


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}
