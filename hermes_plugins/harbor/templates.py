"""`${VAR}` and `${VAR:-text}` in a task's variables, filled from the worker's environment.

Whatever is filled in is the agent's to read. So only variables that the worker's settings name are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from functools import partial

from hermes_queue.errors import EnvBug

_TEMPLATE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_VARIABLES = 500
MAX_VALUE_CHARS = 64 << 10


def filled(
    table: Mapping[str, str], allowed: Collection[str], *, place: str
) -> tuple[tuple[str, str], ...]:
    """The variables of one table of `task.toml`, sorted.

    Raises:
        EnvBug: a template names a variable that is not allowed or not set and has no default, or
            a name or value is impossible; the message names the variable and the fix.
    """
    if len(table) > MAX_VARIABLES:
        raise EnvBug(f"{place}: has more than {MAX_VARIABLES} variables")
    found = []
    for name, text in sorted(table.items()):
        if not _NAME.fullmatch(name) or "\0" in text or len(text) > MAX_VALUE_CHARS:
            raise EnvBug(f"{place}.{name:.100}: is no name and value of a variable")
        fill = partial(_value, allowed=allowed, place=f"{place}.{name}")
        found.append((name, _TEMPLATE.sub(fill, text)))
    return tuple(found)


def _value(match: re.Match[str], allowed: Collection[str], place: str) -> str:
    variable, default = match[1], match[2]
    if variable in allowed and (value := os.environ.get(variable)) is not None:
        return value
    if default is not None:
        return str(default)
    if variable in allowed:
        raise EnvBug(
            f"{place}: needs ${{{variable}}} of the worker's environment, where it is not set"
        )
    raise EnvBug(
        f"{place}: needs ${{{variable}}} of the worker's environment, which tasks may not read: "
        f'add "{variable}" to HERMES_QUEUE_HARBOR_ENV if the agent may know its value'
    )
