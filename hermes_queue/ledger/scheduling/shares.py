"""What operators set for lanes, teams, runs and envs: a row of numbers each."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import explained
from hermes_queue.keyspace.deployment import Deployment

logger = logging.getLogger(__name__)

ShareKind = Literal["fleet", "lane", "team", "run", "env"]
KINDS: tuple[ShareKind, ...] = get_args(ShareKind)
NAME_MAX = 200
ROWS_MAX = 2000
"""Rows that a deployment may have."""

_Positive = Annotated[FiniteFloat, Field(gt=0, le=1e9)]
_BESIDE_OTHERS = ("lane", "team", "run", "env")
_ONLY = {
    "weight": _BESIDE_OTHERS,
    "reserved": ("lane",),
    "order": ("lane",),
    "half_life_s": ("fleet",),
}


class Share(BaseModel):
    """What is set for one of them; None = the default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: Annotated[FiniteFloat, Field(ge=0.001, le=1e6)] | None = None
    """Part of the slot-time among its siblings that have jobs waiting; default 1."""
    reserved: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    """Part of the slot-time that a lane gets before all others, and no more while they wait;
    default 0, of lanes that begin with `eval` 0.25."""
    order: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Preference of a lane beyond reserved shares, lower first; lanes of one order share by weight.
    Default: the place of the lane in the worker's list."""
    max_running: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Trajectories at once; default unlimited."""
    quota_h: _Positive | None = None
    """Slot-hours in each window of `window_s`; default unlimited."""
    window_s: Annotated[FiniteFloat, Field(ge=1, le=366 * 86400)] | None = None
    """Seconds of a window, which begin at multiples of it since 1970; default a day."""
    half_life_s: Annotated[FiniteFloat, Field(ge=1, le=365 * 86400)] | None = None
    """Of the whole fleet: after this time used slot-time counts half; default 1,800."""

    def row(self) -> str:
        """As Lua reads it; "" = nothing is set."""
        known = self.model_dump(exclude_none=True)
        if self.quota_h is not None:
            known.setdefault("window_s", 86400)
        return " ".join(
            f"{name}={value:.10f}".rstrip("0").rstrip(".") for name, value in known.items()
        )

    @classmethod
    def of(cls, row: str) -> Share:
        """From a row; what cannot be read counts as not set."""
        try:
            return cls.model_validate(dict(part.split("=", 1) for part in row.split()))
        except (ValueError, ValidationError):
            extra = {"action": "bad_entries"}
            logger.warning("a row of shares cannot be read: %r", row[:200], extra=extra)
            return cls()


class Shares:
    """Reads and sets them."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def all(self) -> dict[tuple[ShareKind, str], Share]:
        """All rows, by kind and name.

        Raises:
            RedisUnavailable: no answer.
        """
        client: Any = self._deployment.client
        with explained(self._deployment.url):
            found = client.hgetall(self._deployment.key("sched"))
        texts = [[part.decode(errors="replace") for part in each] for each in found.items()]
        return rows_of(dict(texts))

    def change(self, kind: ShareKind, name: str, changes: dict[str, Any]) -> Share:
        """Set some values of a row, None = the default; returns the whole row.

        Raises:
            ConfigurationError: a value or name is invalid, or there are `ROWS_MAX` rows.
            RedisUnavailable: it may be set.
        """
        _check_name(kind, name)
        for field in changes:
            if kind not in _ONLY.get(field, KINDS):
                raise ConfigurationError(f"{field.replace('_', '-')} cannot be set for a {kind}")
        known = self.all()
        if (kind, name) not in known and len(known) >= ROWS_MAX:
            raise ConfigurationError(
                f"there are {len(known)} rows; remove some: hermes-queue shares reset"
            )
        before = known.get((kind, name), Share())
        try:
            share = Share.model_validate(before.model_dump() | changes)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = str(first["loc"][0]).replace("_", "-")
            raise ConfigurationError(f"--{field}: {first['msg']}") from error
        self._write(kind, name, share.row())
        return share

    def reset(self, kind: ShareKind, name: str) -> bool:
        """Set nothing any more; False if nothing was set."""
        _check_name(kind, name)
        return bool(self._write(kind, name, ""))

    def _write(self, kind: ShareKind, name: str, row: str) -> bytes:
        field = kind if kind == "fleet" else f"{kind}|{name}"
        before: bytes = self._deployment.call("sched_share", name=field, row=row)
        return before


def rows_of(fields: Mapping[str, str]) -> dict[tuple[ShareKind, str], Share]:
    """The rows among the fields of the hash `sched`, by kind and name."""
    found: dict[tuple[ShareKind, str], Share] = {}
    for field, row in fields.items():
        kind, _, name = field.partition("|")
        if kind in KINDS:
            found[kind, name] = Share.of(row)
    return found


def _check_name(kind: ShareKind, name: str) -> None:
    if kind == "fleet":
        if name:
            raise ConfigurationError("the fleet has no name")
    elif (not name and kind != "team") or len(name) > NAME_MAX or set(name) & set("| \t\n"):
        raise ConfigurationError(
            f"{kind} {name[:80]!r}: give a name of up to {NAME_MAX} characters without spaces and |"
        )
