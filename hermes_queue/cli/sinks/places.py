"""Positions in the results stream, as options of commands."""

from __future__ import annotations

import click

from hermes_queue.results.filters import stream_id


def place(text: str) -> str | float:
    """Parse a position for the `start` of `consume`.

    Raises:
        click.BadParameter: the text is not a position.
    """
    try:
        found: str | float = float(text) if "." in text else text
        stream_id(found)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return found
