"""What a command in a local slot costs, against a bare bash.

    python -m benchmarks.tool_calls [--commands 300] [--isolation bwrap|none]

The kinds take turns. CPU is that of this process and of all processes below it. A locale costs bash
a third of a millisecond, so the bare one is tried with that of slots, too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.base import SLOT_ENVIRONMENT, ExecutionRequest, SlotSpec
from hermes_queue.sandbox.local.backend import LocalBackend
from hermes_queue.settings import LocalSandboxSettings

ROUNDS = 6
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s() -> float:
    """Processor seconds so far of this process, its ended children and all living descendants."""
    ticks, pending = 0, [os.getpid()]
    while pending:
        pid = pending.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            for task in Path(f"/proc/{pid}/task").iterdir():
                pending += map(int, (task / "children").read_text().split())
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15] if pid != os.getpid() else fields[13:15]))
    own = os.times()
    return ticks / TICKS_PER_S + own.user + own.system


def bare(environment: Mapping[str, str]) -> None:
    subprocess.run(["/bin/bash", "-c", "true"], capture_output=True, check=True, env=environment)


async def measure(commands: int, isolation: str, cache: Path) -> None:
    settings = LocalSandboxSettings.model_validate({"isolation": isolation})
    backend = LocalBackend(settings, slots=1, cache=cache)
    await backend.start()
    slot = await backend.acquire("bench", SlotSpec())

    async def in_slot() -> None:
        [answer] = await backend.execute_batch([ExecutionRequest(slot, "true")])
        if isinstance(answer, SandboxError) or not answer.ok:
            raise SystemExit(f"failed: {answer}")

    async def without_variables() -> None:
        bare({})

    async def with_those_of_slots() -> None:
        bare(SLOT_ENVIRONMENT)

    kinds: dict[str, Callable[[], Awaitable[None]]] = {
        "bare bash": without_variables,
        "bare bash, slot's LANG": with_those_of_slots,
        "slot": in_slot,
    }
    used = {name: [0.0, 0.0] for name in kinds}
    each = max(1, commands // ROUNDS)
    for run in kinds.values():
        await run()
    for _ in range(ROUNDS):
        for name, run in kinds.items():
            wall, cpu = time.perf_counter(), cpu_s()
            for _ in range(each):
                await run()
            used[name][0] += time.perf_counter() - wall
            used[name][1] += cpu_s() - cpu
    for name, (wall_s, busy_s) in used.items():
        count = each * ROUNDS / 1000
        print(f"{name:<24} {wall_s / count:6.2f} ms wall {busy_s / count:6.2f} ms CPU")
    await backend.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=300)
    parser.add_argument("--isolation", choices=("bwrap", "none"), default="bwrap")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hq-bench-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        asyncio.run(measure(options.commands, options.isolation, Path(directory)))


if __name__ == "__main__":
    main()
