"""Opens the endpoint of an attempt without holding up the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hermes_queue.agent.capture.calls import Session

if TYPE_CHECKING:
    from hermes_queue.agent.capture.bounds import Bounds
    from hermes_queue.agent.capture.server import CallServer


async def open_server(
    session: Session, *, refusal_status: int = 401, bounds: Bounds | None = None
) -> CallServer:
    """The server of a session's calls; nothing listens until its `factory` is given to `listen`.

    `refusal_status` answers calls of a trajectory that is over: a program should end on it.
    The first call imports the HTTP library in a thread, as a busy machine takes seconds for it.
    """
    server = await asyncio.to_thread(_imported)
    return server(session, refusal_status=refusal_status, bounds=bounds)


def _imported() -> type[CallServer]:
    from hermes_queue.agent.capture.server import CallServer

    return CallServer
