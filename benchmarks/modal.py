"""What the Modal backend costs, against a Modal-compatible server on this machine.

    python -m benchmarks.modal [--execs 200] [--trajectories 20] [--files 2000]

All in one run: commands through the backend, through the bare SDK and as bare subprocesses,
one after the other and 50 and 200 at once; trajectories in slots that are used again and in a
sandbox each, with sandboxes that start at once and after a second, and with commands that the
service begins late; a set-up done for each
trajectory and kept as a snapshot; a set-up that reaches a running sandbox as a snapshot and as
a volume. CPU is that of this process, of the server, and of all commands. Round trips over a
network, and the time Modal takes to start a sandbox, come on top.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import modal

from benchmarks.modal_server import Meter, modal_server, show
from hermes_queue.errors import SandboxError
from hermes_queue.localmodal.faults.service import RemoteFaults
from hermes_queue.sandbox.base import AssetSpec, ExecutionRequest, Slot, SlotSpec
from hermes_queue.sandbox.modal.backend import ModalBackend
from hermes_queue.settings import ModalSettings

ROUNDS = 5
"""The kinds take turns, so that a busy neighbour meets all of them."""
COMMANDS = 4
"""Of a trajectory, set-up and verification included."""
FILE_BYTES = 8 << 10
LATENCIES_S = (0.0, 0.15, 0.3)
"""Of a command at the service, as users have reported it."""
Run = Callable[[int], Awaitable[None]]
"""Run one command that does nothing; the number spreads them over sandboxes."""


@asynccontextmanager
async def backend(cache: Path, slots: int, **settings: Any) -> Any:
    """A started backend."""
    section = ModalSettings(**{"creates_per_s": 1e6, "max_starting": 10**6, **settings})
    made = ModalBackend(section, slots=slots, cache=cache)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def in_slot(made: ModalBackend, slot: Slot, command: str) -> None:
    """Run a command that must succeed."""
    [result] = await made.execute_batch([ExecutionRequest(slot, command)])
    if isinstance(result, SandboxError):
        raise result
    if not result.ok:
        raise SystemExit(f"{command}: {result}")


async def through_sdk(sandbox: Any, *argv: str) -> None:
    """The same through the SDK as its documentation shows it."""
    process = await sandbox.exec.aio(*argv, timeout=120, text=False)
    _, _, code = await asyncio.gather(
        process.stdout.read.aio(), process.stderr.read.aio(), process.wait.aio()
    )
    if code:
        raise SystemExit(f"{argv}: exit code {code}")


async def bare(_: int) -> None:
    """The same as a child of this process."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "/bin/bash", "-c", "true", stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    await process.communicate()


async def measure_commands(server: int, cache: Path, execs: int) -> None:
    """One after the other, then 50 and 200 at once, in 20 slots of two sandboxes."""
    app = await modal.App.lookup.aio("bench", create_if_missing=True)
    image = modal.Image.debian_slim()
    boxes = [await modal.Sandbox.create.aio(app=app, image=image, timeout=3600) for _ in range(2)]
    async with backend(cache, 20, slots_per_sandbox=10) as made:
        slots = await asyncio.gather(*(made.acquire(f"t{n}", SlotSpec()) for n in range(20)))
        kinds: Mapping[str, Run] = {
            "bare subprocess": bare,
            "bare SDK": lambda n: through_sdk(boxes[n % 2], "/bin/bash", "-c", "true"),
            "our backend": lambda n: in_slot(made, slots[n % 20], "true"),
        }
        for run in kinds.values():
            await run(0)
        for at_once in (1, 50, 200):
            await compare_commands(server, kinds, at_once, execs)
    for box in boxes:
        await box.terminate.aio()


async def compare_commands(server: int, kinds: Mapping[str, Run], at_once: int, execs: int) -> None:
    """Print what a command costs by each of the kinds, so many at once."""
    meters = {name: Meter(server) for name in kinds}
    for _ in range(ROUNDS):
        for name, run in kinds.items():
            batches = range(max(1, execs // ROUNDS // at_once))
            with meters[name].measuring(len(batches) * at_once):
                for _ in batches:
                    await asyncio.gather(*map(run, range(at_once)))
    print(f"\na command, {at_once} at once" if at_once > 1 else "\na command, in series")
    for name, meter in meters.items():
        show(f"  {name}", meter, meters["bare subprocess"])


async def trajectory(
    made: ModalBackend, spec: SlotSpec, *, own_box: bool = False, set_up: str = "true"
) -> None:
    """Lease, work, renew, verify, release; with `own_box` the sandbox ends with it."""
    slot = await made.acquire("t", spec)
    await in_slot(made, slot, set_up)
    for _ in range(COMMANDS - 2):
        await in_slot(made, slot, "echo x >>file; cat file")
    slot = await made.renew(slot)
    await in_slot(made, slot, "true")
    if own_box:
        await made.terminate(slot.sandbox_id)
    await made.release(slot)


async def many(made: ModalBackend, count: int, at_once: int, **options: Any) -> None:
    """Run `count` trajectories, `at_once` at a time."""

    async def one_after_another() -> None:
        for _ in range(count // at_once):
            await trajectory(made, SlotSpec(), **options)

    await asyncio.gather(*(one_after_another() for _ in range(at_once)))


async def measure_trajectories(server: int, cache: Path, count: int) -> None:
    """Slots that are used again against a sandbox each."""
    at_once = 4
    count -= count % at_once
    faults = RemoteFaults(os.environ)
    for delay_s in (0.0, 1.0):
        meters = {own_box: Meter(server) for own_box in (False, True)}
        for own_box, meter in meters.items():
            for call in ("SandboxCreate", "SandboxCreateV2"):
                if delay_s:
                    faults.inject(call, delay_s=delay_s, count=10**6)
            async with backend(cache, at_once, slots_per_sandbox=1 if own_box else 10) as made:
                with meter.measuring(count):
                    await many(made, count, at_once, own_box=own_box)
            faults.clear()
        print(
            f"\na trajectory of {COMMANDS} commands, {at_once} at once, starts {delay_s:g} s late"
        )
        show("  slots of one sandbox, used again", meters[False])
        show("  a sandbox each", meters[True], meters[False])


async def measure_latency(server: int, cache: Path, count: int) -> None:
    """What a trajectory pays where the service takes longer to begin a command."""
    faults = RemoteFaults(os.environ)
    meters = {delay_s: Meter(server) for delay_s in LATENCIES_S}
    calls = dict.fromkeys(LATENCIES_S, 0)
    async with backend(cache, 1) as made:
        await trajectory(made, SlotSpec())  # the sandbox, and what it is asked once
        for _ in range(count):
            for delay_s, meter in meters.items():
                if delay_s:
                    faults.inject("TaskExecStart", delay_s=delay_s, count=10**6)
                calls[delay_s] -= faults.calls()["TaskExecStart"]
                with meter.measuring():
                    await trajectory(made, SlotSpec())
                calls[delay_s] += faults.calls()["TaskExecStart"]
                faults.clear()
    print(f"\na trajectory of {COMMANDS} commands, one after the other")
    for delay_s, meter in meters.items():
        name = f"  each of {calls[delay_s] / count:g} calls {1000 * delay_s:g} ms late"
        show(name, meter, meters[0.0] if delay_s else None)


def set_up(files: int) -> AssetSpec:
    """A set-up as large as a dependency environment; every one is another."""
    key = secrets.token_hex(8)
    size = files * FILE_BYTES
    script = f"head -c {size} /dev/urandom | split -a 5 -b {FILE_BYTES} - file-"
    return AssetSpec("bench", key, script, f"/opt/assets/bench-{key}")


async def measure_set_ups(server: int, cache: Path, count: int, files: int) -> None:
    """The first trajectory of a repository, which makes the set-up, against all further ones."""
    first, further, without = Meter(server), Meter(server), Meter(server)
    async with backend(cache, 1, slots_per_sandbox=1) as made:
        await trajectory(made, SlotSpec())
        for _ in range(count):
            asset = set_up(files)
            for meter in (first, further):
                with meter.measuring():
                    await trajectory(made, SlotSpec(assets=(asset,)))
            with without.measuring():
                await trajectory(
                    made, SlotSpec(), set_up=f"mkdir set-up && cd set-up && {asset.script}"
                )
    print(f"\na trajectory with a set-up of {files} files, {files * FILE_BYTES >> 20} MiB")
    show("  starts from the snapshot", further)
    show("  does it in its slot", without, further)
    show("  builds the snapshot, once for all", first, further)


Share = Callable[[Any, Any, str], Awaitable[None]]
"""Have what `writer` has at /made also in `reader`, which runs already, at the given path."""


async def as_snapshot(writer: Any, reader: Any, place: str) -> None:
    """As the backend does it."""
    image = await writer.snapshot_directory.aio("/made")
    await reader.mount_image.aio(place, image)


async def as_volume(writer: Any, reader: Any, place: str) -> None:
    """A volume that both have mounted: one commits, the other loads it anew."""
    await through_sdk(
        writer, "/bin/bash", "-c", f"mkdir /cache{place} && cp -a /made/. /cache{place}"
    )
    await writer.reload_volumes.aio()
    await reader.reload_volumes.aio()


async def measure_sharing(server: int, count: int, files: int) -> None:
    """From a set-up that is made in one sandbox to the same in another, and reading it there."""
    app = await modal.App.lookup.aio("bench", create_if_missing=True)
    ways: Mapping[str, tuple[Share, str]] = {
        "as a snapshot": (as_snapshot, ""),
        "as a volume": (as_volume, "/cache"),
    }
    shares = {name: Meter(server) for name in ways}
    reads = {name: Meter(server) for name in ways}
    volume = modal.Volume.from_name("bench", create_if_missing=True)
    options: dict[str, Any] = {"app": app, "image": modal.Image.debian_slim(), "timeout": 3600}
    boxes = [
        await modal.Sandbox.create.aio(volumes={"/cache": volume}, **options) for _ in range(2)
    ]
    for turn in range(count):
        script = f"rm -rf /made && mkdir /made && cd /made && {set_up(files).script}"
        await through_sdk(boxes[0], "/bin/bash", "-c", script)
        for name, (share, below) in ways.items():
            with shares[name].measuring():
                await share(boxes[0], boxes[1], f"/shared-{turn}")
            check = f"[ $(find {below}/shared-{turn} -type f | wc -l) = {files} ]"
            read = f"{check} && cat $(find {below}/shared-{turn} -type f) >/dev/null"
            with reads[name].measuring():
                await through_sdk(boxes[1], "/bin/bash", "-c", read)
    for box in boxes:
        await box.terminate.aio()
    print(
        f"\na set-up of {files} files from one running sandbox to another ({count} after another)"
    )
    for name in ways:
        show(f"  {name}", shares[name], shares["as a snapshot"])
    for name in ways:
        show(f"  read there, {name}", reads[name], reads["as a snapshot"])


async def measure(server: int, arguments: argparse.Namespace) -> None:
    """All of it."""
    with tempfile.TemporaryDirectory(prefix="hq-bench-") as directory:
        cache = Path(directory)
        await measure_commands(server, cache, arguments.execs)
        await measure_trajectories(server, cache, arguments.trajectories)
        await measure_latency(server, cache, arguments.set_ups)
        await measure_set_ups(server, cache, arguments.set_ups, arguments.files)
        await measure_sharing(server, arguments.set_ups, arguments.files)


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modal", description=__doc__)
    parser.add_argument("--execs", type=int, default=200, help="of each kind, in series")
    parser.add_argument("--trajectories", type=int, default=20)
    parser.add_argument("--set-ups", type=int, default=5)
    parser.add_argument("--files", type=int, default=2000, help="of a set-up, 8 KiB each")
    arguments = parser.parse_args(given)
    logging.getLogger("hermes_queue").setLevel(logging.ERROR)  # sandboxes end under their slots
    with modal_server() as server:
        asyncio.run(measure(server, arguments))


if __name__ == "__main__":
    main()
