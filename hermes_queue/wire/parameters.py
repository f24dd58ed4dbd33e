"""Limits of numbers, nesting and text that every reader of a job or record can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

COUNT_MAX = 2**53 - 1
"""Largest number in a job: JSON readers that use doubles would round larger ones."""
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**64 - 1
"""Range of the integers that a record can hold."""
SHA256_CHARS = 64
TEXT_CHARACTERS, ID_CHARACTERS, URLS_CHARACTERS = 512, 4096, 8192
"""Most of a name that others choose (a model, a version), of a row's id, and of a list of URLs."""
MAX_PARAMETER_DEPTH = 64
"""Nesting of lists and objects in an agent's `sampling` and `params`."""


class _Parametrised(Protocol):
    @property
    def sampling(self) -> dict[str, Any]: ...
    @property
    def params(self) -> dict[str, Any]: ...


P = TypeVar("P", bound=_Parametrised)


def holdable(agent: P) -> P:
    """Return `agent`. Raises ValueError if a record cannot hold its parameters."""
    level: list[tuple[str, Any]] = [("sampling", agent.sampling), ("params", agent.params)]
    for _ in range(MAX_PARAMETER_DEPTH + 1):
        for place, value in level:
            if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
                raise ValueError(f"{place} is an integer of more than 64 bits: give a smaller one")
        level = [
            (f"{place[:200]}.{name}", each)
            for place, value in level
            if isinstance(value, dict | list | tuple)
            for name, each in (value.items() if isinstance(value, dict) else enumerate(value))
        ]
    if level:
        raise ValueError(
            f"{level[0][0][:80]} is nested deeper than {MAX_PARAMETER_DEPTH}: make it flatter"
        )
    return agent


def program_sha256(params: Mapping[str, Any]) -> str | None:
    """The hash under which the program of an agent's `params` is stored beside the rows.

    None: there is no program, or it is not stored.
    """
    program = params.get("program")
    if not isinstance(program, dict) or "run" in program:
        return None
    sha256 = program.get("sha256")
    return sha256 if isinstance(sha256, str) and len(sha256) == SHA256_CHARS else None
