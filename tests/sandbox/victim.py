"""A worker to be killed: leases a slot, leaves a process running in it and prints its sandbox."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from conftest import BACKENDS, Bench


async def main(name: str, cache: Path, worker: str) -> None:
    bench = Bench(
        BACKENDS[name].make(cache=cache, slots=1, labels={"worker": worker}), BACKENDS[name]
    )
    await bench.backend.start()
    slot = await bench.slot()
    await bench.out(slot, "setsid sleep 4242 & touch x")
    print(slot.sandbox_id, flush=True)
    await asyncio.sleep(600)


asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
