"""The scripts of a package as text, for sandboxes that receive them so."""

from __future__ import annotations

import functools
from importlib import resources

PLACE = "#: here come the functions of hermes_queue/sandbox/commands\n"


@functools.cache
def script(package: str, name: str) -> str:
    """The text of a script in `package`; the functions here come in at `PLACE`."""
    text = resources.files(package).joinpath(name).read_text("utf-8")
    if PLACE not in text:
        return text
    functions = (script(__package__, part) for part in ("processes.sh", "kill.sh"))
    return text.replace(PLACE, "\n".join(functions))
