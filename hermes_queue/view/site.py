"""What is shown, and to whom: all that the routes need, made once at the start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from hermes_queue.view.assets import Assets
from hermes_queue.view.tokens import Keys

Told = Callable[[str, Any], None]
"""Takes the name of an event and its data; may be called from any thread."""


class Fleet(Protocol):
    """The deployment as it is now. Without Redis among the sources there is none."""

    def overview(self) -> Mapping[str, Any]:
        """What `hermes-queue status --json` prints.

        Raises:
            RedisUnavailable: Redis does not answer.
        """

    def subscribe(self, tell: Told) -> AbstractContextManager[None]:
        """Tell of changes, beginning with the whole overview, until the block ends."""


@dataclass
class Site:
    """All that routes need."""

    keys: Keys
    cookie: str
    """Name of the cookie: browsers know no ports, so it has the port in it."""
    deployment: str
    version: str
    assets: Assets
    sources: Sequence[Mapping[str, str]] = ()
    """kind and name of each, for people."""
    fleet: Fleet | None = None
    tokenizer: Any = None
    actions: bool = False
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server is about to end, so that streams end, too."""
