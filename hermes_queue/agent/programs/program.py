"""A program: how it is installed and started, and where it finds the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from hermes_queue.agent.programs.templates import fill
from hermes_queue.errors import ModelConfigError
from hermes_queue.sandbox.base import AssetSpec

_MODEL = re.compile(r"[A-Za-z0-9._:/@+-]{1,256}")
MOUNT = "/opt/assets/agent"
"""Where a slot sees the installed program, read-only."""


def check_model_name(name: str) -> None:
    """Refuse a name that would end a string in a configuration. Raises ModelConfigError."""
    if not _MODEL.fullmatch(name):
        raise ModelConfigError(
            f"model {name[:100]!r}: a program's command line and files can hold names of letters, "
            "digits and ._:/@+- only; give the model another name at its server"
        )


@dataclass(frozen=True, slots=True)
class Places:
    """Values of the placeholders of a program's templates."""

    task: str
    """Path of a file that holds the task's text."""
    model: str
    url: str
    """The endpoint without `/v1`: `http://127.0.0.1:PORT`."""
    key: str
    home: str
    workspace: str
    max_turns: int
    agent: str = MOUNT


@dataclass(frozen=True, slots=True)
class Started:
    """A program with all placeholders filled in."""

    command: str
    """A bash command line, to be run in the workspace."""
    env: Mapping[str, str]
    files: Mapping[str, str]
    """Absolute path in the slot -> content; written before the command runs."""
    keep: tuple[str, ...]
    """Absolute paths of files that are kept in the record, at most 1 MiB each."""


@dataclass(frozen=True, slots=True)
class Program:
    """One agent program, see docs/programs.md."""

    name: str
    version: str
    run: str
    """Template of a bash command line with the placeholders of `Places` in braces."""
    dialect: str = "chat"
    """The API it speaks: `chat`, `responses` or `messages`."""
    asset: AssetSpec | None = None
    """Its installation; None: it is part of the image or of the command line."""
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    refusal_status: int = 401
    """Status of a refused call that makes the program end at once."""
    answer: str = ""
    """`TOOL.ARGUMENT`, if the last message is an argument of a call that ends the work."""

    def start(self, places: Places) -> Started:
        """Fill in all placeholders; braces that are none stay as they are.

        Raises:
            ModelConfigError: see `check_model_name`.
        """
        check_model_name(places.model)
        values = {each.name: str(getattr(places, each.name)) for each in fields(places)}
        return Started(
            command=fill(self.run, values),
            env={name: fill(text, values) for name, text in self.env.items()},
            files={fill(path, values): fill(text, values) for path, text in self.files.items()},
            keep=tuple(fill(path, values) for path in self.keep),
        )
