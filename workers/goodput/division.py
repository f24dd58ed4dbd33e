"""The parts of one lease: each second of it has exactly one account."""

from __future__ import annotations

from collections.abc import Mapping

from hermes_queue.ledger.accounts.fields import WORK
from workers.draft import Draft

_SETUP = ("load", "prepare", "acquire", "setup")
_WAIT = "_wait"
"""End of the names of waits for the place of a stage."""
_BEFORE = "queue"
"""The stage that is no part of a lease."""


def divided(draft: Draft, lease_s: float) -> dict[str, float]:
    """The seconds of a measured attempt by account, of `WORK`; they sum up to `lease_s`.

    Calls of a program may overlap, and so may their waits: what they take together is at most the
    time of the agent.
    """
    stages = draft.clock.stage_seconds
    agent, left_s = draft.agent, max(0.0, lease_s)
    agent_s = stages.get("agent", 0.0)
    waiting_s = min(agent_s, max(0.0, agent.waited_s - draft.kept_waited_s))
    calls_s = sum(turn.latency_s for turn in agent.turns[draft.kept_turns :])
    model_s = min(agent_s - waiting_s, max(0.0, calls_s))
    wanted = {
        "setup": sum(stages.get(name, 0.0) for name in _SETUP),
        "waiting": waiting_s + sum(s for name, s in stages.items() if name.endswith(_WAIT)),
        "model": model_s,
        "tools": agent_s - waiting_s - model_s,
        "verify": _others(stages),
    }
    found = {}
    for name in WORK[:-1]:
        found[name] = min(left_s, max(0.0, wanted[name]))
        left_s -= found[name]
    return {**found, WORK[-1]: left_s}


def _others(stages: Mapping[str, float]) -> float:
    known = {*_SETUP, _BEFORE, "agent"}
    return sum(s for name, s in stages.items() if name not in known and not name.endswith(_WAIT))
