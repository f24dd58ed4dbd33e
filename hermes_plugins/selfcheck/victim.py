"""A worker to be killed: leases a slot, leaves a process running in it and prints its sandbox."""

from __future__ import annotations

import asyncio
import sys

from hermes_plugins.selfcheck.bench import SlotBench, Subject
from hermes_queue.sandbox import make_backend


async def main(name: str, worker: str, image: str | None = None) -> None:
    """Lease, print, wait."""
    labels = {"deployment": "selfcheck", "worker": worker}
    backend = make_backend(name, slots=1, labels=labels)
    bench = SlotBench(backend, Subject(name, image=image).spec)
    await bench.backend.start()
    slot = await bench.slot()
    await bench.out(slot, "setsid sleep 4242 & touch x")
    sys.stdout.write(f"{slot.sandbox_id}\n")
    sys.stdout.flush()
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
