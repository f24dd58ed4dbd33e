"""A worker to be killed: `python -m slot_victim BACKEND WORKER`.

Leases a slot, leaves a process running in it and prints its sandbox.
"""

from __future__ import annotations

import asyncio
import sys

from slot_bench import SlotBench

from hermes_queue.sandbox import make_backend


async def main(name: str, worker: str) -> None:
    bench = SlotBench(make_backend(name, slots=1, labels={"deployment": "d", "worker": worker}))
    await bench.backend.start()
    slot = await bench.slot()
    await bench.out(slot, "setsid sleep 4242 & touch x")
    print(slot.sandbox_id, flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
