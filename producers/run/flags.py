"""Options as frozen dataclasses whose fields are command-line flags, and types of their values."""

from __future__ import annotations

import argparse
import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NoReturn, Self

from hermes_queue.errors import ConfigurationError


def flag(help: str, *, default: Any = None, spelled: str = "", **argparse_options: Any) -> Any:
    """A field that is a flag.

    Args:
        help: help text of the flag.
        default: default of field and flag; () for a flag that may be repeated.
        spelled: the flag, if it differs from the field's name with hyphens.
        argparse_options: keyword arguments of `add_argument`.
    """
    if default == ():
        argparse_options["action"] = "append"
    options = {"help": help, **argparse_options}
    return field(default=default, metadata={"spelled": spelled, "options": options})


def switch(help: str) -> Any:
    """A field that is a flag without a value."""
    return flag(help, default=False, action="store_true")


@dataclass(frozen=True)
class Options:
    """Options of one group in a command's `--help`; every field is made by `flag`."""

    title: ClassVar[str]
    """Title of the group."""

    @classmethod
    def add(cls, parser: argparse.ArgumentParser, **defaults: Any) -> None:
        """Add the flags to a parser; `defaults` replace the fields' defaults by name."""
        group = parser.add_argument_group(cls.title) if fields(cls) else parser
        for each in fields(cls):
            default = None if each.default == () else defaults.get(each.name, each.default)
            spelled = each.metadata["spelled"] or "--" + each.name.replace("_", "-")
            group.add_argument(spelled, dest=each.name, default=default, **each.metadata["options"])

    @classmethod
    def of(cls, namespace: argparse.Namespace) -> Self:
        """The options that were parsed."""
        found = {each.name: getattr(namespace, each.name) for each in fields(cls)}
        several = (each.name for each in fields(cls) if each.default == ())
        return cls(**found | {name: tuple(found[name] or ()) for name in several})

    def given(self) -> dict[str, Any]:
        """The fields that are not None, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def at_least(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """An argparse type: whole numbers in a range."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < minimum or (maximum is not None and value > maximum):
            bound = f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"
            raise argparse.ArgumentTypeError(f"must be {bound}, not {value}")
        return value

    return parse


def number(minimum: float, *, above: bool = False) -> Callable[[str], float]:
    """An argparse type: finite numbers of at least `minimum`, or above it."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not math.isfinite(value) or value < minimum or (above and value == minimum):
            bound = "more than" if above else "at least"
            raise argparse.ArgumentTypeError(f"must be {bound} {minimum:g}, not {text}")
        return value

    return parse


class Parser(argparse.ArgumentParser):
    """Raises what the standard one prints, with a page of flags, before it exits."""

    def error(self, message: str) -> NoReturn:
        """Raise ConfigurationError, which names the flag that an unknown one is close to."""
        unknown = re.match(r"unrecognized arguments: (--[^ =]+)", message)
        known = [each for action in self._actions for each in action.option_strings]
        close = difflib.get_close_matches(unknown[1], known, n=1) if unknown else []
        hint = f"did you mean {close[0]}? See" if close else "see"
        raise ConfigurationError(f"{message}; {hint} `{self.prog} --help`")
