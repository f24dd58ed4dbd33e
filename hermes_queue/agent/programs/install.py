"""The installation of a program: an asset that is built once and then read-only in all slots."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from functools import cache, lru_cache
from importlib.resources import files

from hermes_queue.agent.programs.definition import Definition, bare_lock
from hermes_queue.agent.programs.program import MOUNT
from hermes_queue.agent.programs.templates import fill
from hermes_queue.sandbox.base import AssetSpec

TOP_LEVEL = "top_level.txt"
"""File of the asset with the import names that its environment brings."""
TIMEOUT_S = 1800.0
_OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def make_asset(definition: Definition) -> AssetSpec | None:
    """The asset of a program, for slots with any `SlotSpec.python`; None if it installs nothing.

    It is made with the worker's own Python where the program's lock allows it, and does not need
    that of the slot afterwards.
    """
    if not definition.lock and not definition.archives:
        return None
    python = None
    if definition.lock and _OWN_PYTHON not in definition.pythons:
        python = definition.pythons[0]
    archives = [each.model_dump(mode="json") for each in definition.archives]
    packed = json.dumps(archives, sort_keys=True) if archives else ""
    return _asset(definition.lock, packed, fill(definition.self_test, {"agent": MOUNT}), python)


@lru_cache(maxsize=16)
def _asset(lock: str, archives: str, self_test: str, python: str | None) -> AssetSpec:
    """Cached, since every attempt of a run asks for it."""
    parts = {
        "hq_lock": bare_lock(lock),
        "hq_archives": archives,
        "hq_unpack_py": _slot_file("unpack.py"),
        "hq_top_level_py": _slot_file("top_level.py"),
    }
    script = (
        f"HQ_SELF_TEST={shlex.quote(self_test)}\n"
        + "".join(_printer(name, text) for name, text in parts.items())
        + _slot_file("install.sh")
    )
    key = hashlib.sha256("\0".join((python or _OWN_PYTHON, script)).encode()).hexdigest()
    return AssetSpec(
        kind="agent", key=key, script=script, mount=MOUNT, python=python, timeout_s=TIMEOUT_S
    )


@cache
def _slot_file(name: str) -> str:
    return files(__package__).joinpath("slot", name).read_text(encoding="utf-8")


def _printer(name: str, text: str) -> str:
    """A shell function that prints `text`."""
    return f"{name}() {{\n\tprintf %s {shlex.quote(text)}\n}}\n"
