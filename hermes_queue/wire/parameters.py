"""Numbers, nesting and text of what travels: what every reader of a job or record can hold."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

COUNT_MAX = 2**53 - 1
"""Of the numbers in a job: beyond, readers of JSON would round them."""
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**64 - 1
"""The integers that a record can hold."""
MAX_PARAMETER_DEPTH = 64
"""Of lists and objects in each other, in an agent's `sampling` and `params`."""


def printable(text: str) -> str:
    """Text that UTF-8 can carry: what it cannot (lone surrogates) stands there as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


class _Parametrised(Protocol):
    @property
    def sampling(self) -> dict[str, Any]: ...
    @property
    def params(self) -> dict[str, Any]: ...


P = TypeVar("P", bound=_Parametrised)


def holdable(agent: P) -> P:
    """An agent whose parameters a record, which repeats them, can hold.

    Raises:
        ValueError: they are not; the message names the one and what to do.
    """
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
