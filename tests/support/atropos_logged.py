"""The unmodified Atropos app, with a log of the batches that it hands out, before it does.

    ATROPOS_BATCH_LOG=/path python -m uvicorn atropos_logged:app

One JSON line per batch: time, the trainer's own name of itself, trajectory ids.
"""

from __future__ import annotations

import json
import os
import time

from atroposlib.api import app as atropos

_LOG = os.environ["ATROPOS_BATCH_LOG"]


async def app(scope, receive, send):
    if scope.get("path") != "/batch":
        await atropos(scope, receive, send)
        return
    trainer = dict(scope["headers"]).get(b"x-trainer", b"").decode()
    chunks: list[bytes] = []
    messages = []

    async def hold(message):
        messages.append(message)
        chunks.append(message.get("body", b""))

    await atropos(scope, receive, hold)
    batch = json.loads(b"".join(chunks)).get("batch")
    if batch:
        ids = [o["hermes_queue"]["trajectory_id"] for g in batch for o in g["overrides"]]
        with open(_LOG, "a") as log:
            log.write(json.dumps({"at": time.time(), "trainer": trainer, "ids": ids}) + "\n")
    for message in messages:
        await send(message)
