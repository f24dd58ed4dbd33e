"""What one check of `hermes-queue doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]
"""error: work fails or is lost like this. warning: it works, and somebody should know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    """What was looked at, e.g. `redis.memory`; stable."""
    level: Level
    message: str
    remedy: str = ""
    """What to do; empty when there is nothing to do."""


def ok(check: str, message: str) -> Finding:
    """Nothing to do."""
    return Finding(check, "ok", message)


def warning(check: str, message: str, remedy: str) -> Finding:
    """It works like this."""
    return Finding(check, "warning", message, remedy)


def error(check: str, message: str, remedy: str = "") -> Finding:
    """It does not work like this; `remedy` is empty where the message has it."""
    return Finding(check, "error", message, remedy)
