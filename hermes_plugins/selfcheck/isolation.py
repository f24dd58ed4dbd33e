"""Checks of the guarantees of `Capabilities.isolation`."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from pathlib import Path

from hermes_plugins.selfcheck.bench import CheckFailed, Trial, check, expect, same
from hermes_plugins.selfcheck.processes import COUNT
from hermes_queue.sandbox.base import Slot


@check(isolated=True)
async def reset_also_empties_the_shared_temporary_places(bench: Trial, slot: Slot) -> None:
    """Empty /tmp, /var/tmp and /dev/shm with the slot."""
    await bench.out(slot, "touch /tmp/x /var/tmp/x /dev/shm/x")
    again = await bench.backend.renew(slot)
    same(await bench.out(again, "find /tmp /var/tmp /dev/shm -mindepth 1"), "", "left")


@check(isolated=True, image="backend")
async def only_these_places_are_writable(bench: Trial, slot: Slot) -> None:
    """Let a slot write to its workspace, HOME, /tmp, /var/tmp and /dev/shm, and nowhere else."""
    # /dev/stdin and the like are links into the command's own /proc entry.
    command = (
        "find / -xdev -path /proc -prune -o -writable ! -type l ! -type c -print 2>/dev/null; "
        "for d in $PWD ~ /tmp /var/tmp /dev/shm; do touch $d/x && echo $d; done"
    )
    home = await bench.out(slot, "cd; pwd -P")
    places = (await bench.out(slot, command)).splitlines()[-5:]
    same(places, [slot.workspace, home, "/tmp", "/var/tmp", "/dev/shm"], "writable places")
    for place in ("/", "/usr", "/usr/bin", "/etc", "/opt", "/opt/python", "/dev", "/home", "/var"):
        touched = await bench.sh(slot, f"touch {place}/x")
        expect(not touched.ok, f"the slot can write to {place}")


@check(isolated=True, image="backend")
async def a_slot_cannot_see_or_signal_another(bench: Trial) -> None:
    """Keep one slot's files and processes out of reach of the others."""
    one, other = await bench.slot(), await bench.slot()
    await bench.out(one, "echo secret >f; sleep 4242 & echo $! >/tmp/pid")
    pid = await bench.out(one, "cat /tmp/pid")
    same(await bench.out(other, "find . -mindepth 1"), "", "files of the other slot")
    for path in ("/tmp/pid", f"{one.workspace}/f", f"/proc/{pid}/environ", f"/proc/{pid}/cwd/f"):
        read = await bench.sh(other, f"cat {path}")
        expect(not read.ok, f"another slot can read {path}")
    await bench.sh(other, f"kill -9 {pid}; kill -9 -1; pkill -9 sleep")
    same(await bench.out(one, COUNT), "1", "processes that survive another slot's signals")


@check(isolated=True, image="backend")
async def commands_have_no_capabilities_and_cannot_gain_any(bench: Trial, slot: Slot) -> None:
    """Run commands without capabilities and with no_new_privs."""
    status = await bench.out(slot, "grep Cap /proc/self/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    expect({"CapInh", "CapPrm", "CapEff"} <= fields.keys(), f"found {sorted(fields)}")
    for name in fields.keys() - {"CapBnd"}:
        same(int(fields[name], 16), 0, name)
    no_new_privileges = "import ctypes; print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))"
    same(await bench.out(slot, f"python3 -c '{no_new_privileges}'"), "1", "no_new_privs")
    mounted = await bench.sh(slot, "mount -o remount,rw /usr || mount -t tmpfs x /tmp")
    expect(not mounted.ok, "a command can mount")


@check(isolated=True)
async def the_workers_files_and_processes_are_out_of_sight(bench: Trial, slot: Slot) -> None:
    """Show a slot neither the worker's files nor its processes."""
    with tempfile.TemporaryDirectory() as directory:
        secret = Path(directory, "secret")
        await asyncio.to_thread(secret.write_text, "hunter2")
        hidden = [secret, Path(__file__)]
        if bench.subject.image is None:  # which has its own
            hidden += [Path("/etc/shadow"), Path.home() / ".ssh"]
        for path in hidden:
            found = await bench.sh(slot, f"[ -r '{path}' ]")
            expect(not found.ok, f"the slot can read {path}")
    # Those of the sandbox, if slots share it: no other slot uses it meanwhile. Some backends keep a
    # process or two for seconds after each command.
    for _ in range(4):
        pids = (await bench.out(slot, "cd /proc && echo [0-9]*")).split()
        if len(pids) < 10:
            return
        await asyncio.sleep(2)
    raise CheckFailed(f"the slot sees {len(pids)} processes")


@check(isolated=True)
async def there_is_no_network(bench: Trial, slot: Slot) -> None:
    """Give slots no network but a separate loopback, unless the settings allow more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        connected = await bench.sh(slot, connect)
        expect(not connected.ok, "the slot reaches this host's loopback")
    interfaces = await bench.out(slot, "tail -n +3 /proc/net/dev | cut -d: -f1")
    same(interfaces.split(), ["lo"], "network interfaces")


@check(isolated=True)
async def a_slot_outlives_whatever_its_commands_kill(bench: Trial, slot: Slot) -> None:
    """Protect the slot's first process from signals of its commands."""
    await bench.sh(slot, "kill -9 1; kill -TERM 1; kill -STOP 1; kill -9 -1; true")
    same(await bench.out(slot, "echo alive"), "alive")
