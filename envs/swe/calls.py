"""Tool calls for scripted agents: bash lines for the terminal, file content as base64."""

from __future__ import annotations

import base64
import shlex

from hermes_queue.models import ToolCall
from hermes_queue.tools import make_call

CHUNK_CHARACTERS = 48_000
"""Characters of base64 per command: far below the limit of a process argument."""


def terminal_calls(*commands: str) -> list[ToolCall]:
    """One call of `terminal` per command."""
    return [
        make_call(f"call-{number}", "terminal", command=command)
        for number, command in enumerate(commands, start=1)
    ]


def write_command(path: str, text: str, *, append: bool = False) -> str:
    """A command that writes `text` to a file of the workspace, and creates its parents."""
    encoded = base64.b64encode(text.encode()).decode()
    target = shlex.quote(path)
    return (
        f'mkdir -p "$(dirname {target})"; '
        f"printf %s {encoded} | base64 -d {'>>' if append else '>'} {target}"
    )


def apply_commands(patch: bytes) -> list[str]:
    """Commands that apply `patch` to the workspace, in several steps if it is long."""
    text = base64.b64encode(patch).decode()
    chunks = [text[at : at + CHUNK_CHARACTERS] for at in range(0, len(text), CHUNK_CHARACTERS)]
    if len(chunks) == 1:
        return [f"printf %s {text} | base64 -d | git apply --whitespace=nowarn -"]
    store = ".git/gold.base64"
    lines = [f"printf %s {chunk} >> {store}" for chunk in chunks]
    return [*lines, f"base64 -d {store} | git apply --whitespace=nowarn - && rm {store}"]
