"""A worker's Modal backend to be killed: leases slots, leaves things in them, prints its facts."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from hermes_queue.ledger import Ledger
from hermes_queue.sandbox.base import AssetSpec, ExecutionRequest, SlotSpec
from hermes_queue.sandbox.modal.backend import ModalBackend
from hermes_queue.settings import ModalSettings
from workers.upkeep.inventory import Inventory

ASSET = AssetSpec("test", "ab" * 16, "echo built >>file", "/opt/assets/test-asset")
LEAVE = (
    "id -u; echo secret | tee work /tmp/a /var/tmp/b /dev/shm/c >/dev/null; "
    "setsid bash -c 'trap \"\" TERM; while :; do sleep 1; echo noise >/tmp/d; done' "
    ">/dev/null 2>&1 </dev/null &"
)


async def main(url: str, cache: Path, worker: str, settings: dict[str, object]) -> None:
    inventory = Inventory(Ledger.connect(url=url), "modal")
    backend = ModalBackend(
        ModalSettings(creates_per_s=1000.0, **settings),
        slots=2,
        cache=cache,
        labels={"worker": worker},
        observer=inventory,
        predecessors=inventory,
    )
    await backend.start()
    slots = [await backend.acquire(f"t{n}", SlotSpec(assets=(ASSET,))) for n in range(2)]
    told = await backend.execute_batch([ExecutionRequest(slot, LEAVE) for slot in slots])
    uids = [answer.stdout.decode().strip() for answer in told]
    print(json.dumps({"sandbox_id": slots[0].sandbox_id, "uids": uids}), flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    url, cache, worker, settings = sys.argv[1:]
    asyncio.run(main(url, Path(cache), worker, json.loads(settings)))
