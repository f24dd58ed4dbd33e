"""What commands and producers write: all of it goes through `echo` or a `console`.

Agents, models, rows and neighbours have a part in most texts (names, reasons, messages). A terminal
obeys none of their characters: `visible` shows them as signs. Styles and cursor moves are ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from hermes_queue.terminal.escapes import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType  # noqa: TID251
    from rich.segment import Segment


def echo(text: object = "", *, head: str = "", err: bool = False, nl: bool = True) -> None:
    """Write `text`, harmless, after a `head` of ours, which may have styles; `err`: to stderr."""
    click.echo(head + visible(str(text)), err=err, nl=nl)  # noqa: TID251 - the one place


def console(**options: Any) -> Console:
    """A rich console with these options that writes nothing that a terminal would obey."""
    return _console_class()(**options)


@cache
def _console_class() -> type[Console]:
    from rich.console import Console  # noqa: TID251 - the one place
    from rich.segment import Segment

    class HarmlessConsole(Console):
        """Shows controls in texts as signs; those of rich itself are segments of another kind."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or segment.text.isprintable() or segment.text == "\n":
                    yield segment
                else:
                    yield Segment(visible(segment.text), segment.style)

    return HarmlessConsole
