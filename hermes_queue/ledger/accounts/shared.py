"""Budgets that jobs of several runs share: of an env, a team or a model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger

KINDS = ("env", "team", "model")
AMOUNTS = ("cost_usd", "tokens", "slot_s")
WINDOWS = {"none": 0, "hour": 3600, "day": 86400, "week": 7 * 86400, "month": 30 * 86400}
"""Seconds for which spending counts; 0 = for ever. A window begins at a multiple of its length
since 1970, UTC: a day at midnight."""
NAME_MOST = 200


@dataclass(frozen=True, slots=True)
class SharedBudget:
    """One budget; amounts by the names of `AMOUNTS`."""

    name: str
    """kind:name, e.g. `team:alpha`."""
    limits: Mapping[str, float]
    spent: Mapping[str, float]
    """In the current window."""
    reserved: Mapping[str, float]
    """For running jobs."""
    window_s: float
    """0 = for ever."""
    running: int
    waiting: int
    """Jobs that are set aside because it has no room."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing may begin before the next window or a higher limit."""
        return any(self.spent.get(name, 0.0) >= limit for name, limit in self.limits.items())


class SharedBudgets:
    """The shared budgets of one deployment."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def set(
        self, name: str, limits: Mapping[str, float | None], *, window_s: float | None = None
    ) -> None:
        """Set limits, None for no limit; others and what is spent stay.

        It counts attempts that begin from now on. Jobs that waited for room begin within seconds
        if there is some.

        Raises:
            ConfigurationError: the name is not `kind:name`.
        """
        self._ledger.call(
            "budget_set",
            name=_checked(name),
            lift=False,
            window_s=window_s,
            limits=list(limits.items()),
        )

    def lift(self, name: str) -> bool:
        """Remove a budget; its jobs go on within seconds. False if there was none."""
        return bool(
            self._ledger.call(
                "budget_set", name=_checked(name), lift=True, window_s=None, limits=[]
            )
        )

    def all(self) -> list[SharedBudget]:
        """All budgets by name. Raises RedisUnavailable."""
        ledger = self._ledger
        with explained(ledger.url):
            client: Any = ledger.client
            known = client.hkeys(ledger.key("budgets"))
            names = sorted(name.decode(errors="replace") for name in known)
            with client.pipeline(transaction=False) as pipe:
                pipe.time()
                for name in names:
                    pipe.hgetall(ledger.key(f"budget:{name}"))
                    pipe.zcard(ledger.key(f"budget-held:{name}"))
                (now_s, _), *found = pipe.execute()
        rows = zip(names, found[::2], found[1::2], strict=True)
        return [_budget(name, raw, waiting, now_s) for name, raw, waiting in rows]


def _budget(name: str, raw: Mapping[bytes, bytes], waiting: int, now_s: float) -> SharedBudget:
    fields = {key.decode(): value.decode() for key, value in raw.items()}
    window_s = float(fields.get("window_s") or 0)
    is_current = not window_s or fields.get("window") == str(int(now_s // window_s))

    def amounts(kind: str) -> dict[str, float]:
        return {
            amount: max(0.0, float(fields[f"{kind}:{amount}"]))
            for amount in AMOUNTS
            if f"{kind}:{amount}" in fields
        }

    return SharedBudget(
        name=name,
        limits=amounts("limit"),
        spent=amounts("spent") if is_current else {},
        reserved=amounts("reserved"),
        window_s=window_s,
        running=max(0, int(fields.get("running", 0))),
        waiting=waiting,
    )


def _checked(name: str) -> str:
    """Raises ConfigurationError: it is no name of a budget."""
    kind, _, of = name.partition(":")
    if kind not in KINDS or not of or len(name) > NAME_MOST or re.search(r"[\x00-\x20\x7f]", name):
        raise ConfigurationError(
            f"{json.dumps(name[:80])} names no budget: it is KIND:NAME, with KIND one of "
            f"{', '.join(KINDS)}, e.g. team:alpha, and at most {NAME_MOST} characters, no blanks"
        )
    return name
