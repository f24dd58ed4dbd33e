"""What runs inside containers: their first process, the wrapper of commands, and their end."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_queue.sandbox.base import WORKSPACE
from hermes_queue.sandbox.commands.shell import script

SLOT_UID = 20_000
"""Of commands in slots without an image of their own."""
HOME = "/home/agent"
ASSETS = "/opt/assets"
BASH = ("/bin/bash", "-p", "-c")
"""With -p it heeds no variable of the image that would run other code first."""
WAIT = "while :; do command eval 'sleep 86400 & wait $!'; done 2>/dev/null"
"""Also collects orphans. Most shells end when they cannot fork, which a slot that has used up its
processes could bring about, unless that happens in `command eval`. Without a trap for it, the
kernel spares a first process every signal from inside, and engines end it with SIGKILL."""
PROBE = (
    "for name in timeout env setpriv; do command -v $name >/dev/null || echo lacks=$name; done; "
    """echo python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)"""
)
"""Prints abilities of an image."""


def first_process(uid: int | None) -> tuple[str, ...]:
    """The argv of a container's first process; it makes a slot's directories for `uid`."""
    if uid is None:
        return ("/bin/sh", "-c", WAIT)
    places = f"{WORKSPACE} {HOME}"
    furnish = (
        f"umask 022 && mkdir -p {places} {ASSETS} && chown {uid}:{uid} {places} && "
        f"chmod 700 {places} && : >/.hq; "
    )
    return ("/bin/sh", "-c", furnish + WAIT)


def wrapper() -> tuple[str, ...]:
    """The beginning of the argv that wraps a command, see run.sh."""
    return (*BASH, script(__package__, "run.sh"), "run")


def conceal(names: Sequence[str]) -> tuple[str, ...]:
    """The argv that hides Python packages, see conceal.sh."""
    return (*BASH, script(__package__, "conceal.sh"), "conceal", *names)


def kill(command_id: str) -> tuple[str, ...]:
    """The argv that kills a command, see kill.sh."""
    return (*BASH, script(__package__, "kill.sh"), "kill", command_id)
