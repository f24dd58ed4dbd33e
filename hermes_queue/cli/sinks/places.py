"""How commands are told a place in the stream."""

from __future__ import annotations

import click

from hermes_queue.results.filters import stream_id


def place(text: str) -> str | float:
    """What `consume` takes as `start`.

    Raises:
        click.BadParameter: it is no place.
    """
    try:
        found: str | float = float(text) if "." in text else text
        stream_id(found)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return found
