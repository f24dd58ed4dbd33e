"""Checks of slots with an image of their own: `hermes-queue sandboxes check NAME --image IMAGE`."""

from __future__ import annotations

import dataclasses
from typing import cast

from hermes_plugins.selfcheck.bench import (
    NotApplicable,
    SlotBench,
    Trial,
    check,
    expect,
    raising,
    same,
)
from hermes_plugins.selfcheck.processes import COUNT
from hermes_queue.errors import SandboxError, SandboxRejected, SlotLost
from hermes_queue.sandbox.base import Slot
from hermes_queue.sandbox.image_slots import FileChange, ImageSlots

AS_ROOT = {"user": "0"}
POWERS = {
    "give files away": "touch f && chown 1234:1234 f && [ $(stat -c %u:%g f) = 1234:1234 ]",
    "change closed files": "touch c && chown 1234 c && chmod 000 c && echo x >c",
    "change programs": "echo 'exit 7' >/usr/bin/own-tool && chmod +x /usr/bin/own-tool",
    "enter a directory as a root": "mkdir -p new/bin && { chroot new /nope; [ $? = 127 ]; }",
}
REFUSALS = {
    "mount": "mount -t tmpfs x /mnt || mount --bind /tmp /mnt",
    "remount": "mount -o remount,rw /proc/sys",
    "reach a disk": "rm -f d; mknod d b 8 0 && head -c 1 d",
    "make a mount namespace": "unshare -m true",
    "make a user namespace": "unshare -U true",
    "set the kernel's parameters": "echo 1 >/proc/sys/kernel/sysrq",
    "let the kernel act": "echo h >/proc/sysrq-trigger",
    "read the kernel's log": "head -c 1 /dev/kmsg || dmesg | grep -q .",
    "read the kernel's memory": "head -c 1 /dev/mem || head -c 1 /proc/kcore",
    "look into the first process": "cat /proc/1/environ >o && [ -s o ] && tr '\\0' '\\n' <o "
    "| grep -q ^HERMES_QUEUE",
}


@check(image="image")
async def a_slot_has_the_files_and_settings_of_its_image(bench: Trial, slot: Slot) -> None:
    """Start in the image's WORKDIR, with its variables, its PATH and its user's HOME; record the
    image's configuration and what it was.
    """
    config = slot.image_config
    expect(config is not None, "Slot.image_config is not set")
    expect(bool(slot.image), "Slot.image is empty")
    assert config is not None  # noqa: S101 - for the type checker, see above
    same(slot.workspace, config.workdir or "/", "Slot.workspace")
    same(await bench.out(slot, "pwd -P"), slot.workspace, "working directory")
    found = dict(
        line.split("=", 1) for line in (await bench.out(slot, "env")).splitlines() if "=" in line
    )
    for name, value in config.env.items():
        same(found.get(name), value, name)
    expect(bool(found.get("PATH")) and bool(found.get("HOME")), f"PATH or HOME is missing: {found}")
    expect("MODAL_TASK_ID" not in found, "a variable of the provider is there")


@check(image="image")
async def a_task_adds_variables_and_chooses_the_user(bench: Trial) -> None:
    """Add `SlotSpec.env` to the image's variables, run commands as `SlotSpec.user`, or as the
    user of one request, by name and by number.
    """
    spec = dataclasses.replace(bench.spec, env=(("ADDED", "x y"),), user="65534")
    slot = await bench.slot(spec)
    same(await bench.out(slot, "id -u; echo $ADDED"), "65534\nx y")
    same(await bench.out(slot, "id -u", user="root"), "0", "user of one request")
    same(await bench.out(slot, "id -u", user="nobody"), "65534", "user of one request, by name")
    same(await bench.out(slot, "id -u; id -g", user="1234:77"), "1234\n77", "user and group")
    touched = await bench.sh(slot, "touch /usr/x")
    expect(not touched.ok, "a user who is not root can write to /usr")
    await bench.out(slot, "useradd -u 4321 -m somebody", user="root")
    same(await bench.out(slot, "id -u; cd; pwd", user="somebody"), "4321\n/home/somebody")


@check(image="image")
async def a_user_that_is_not_in_the_image_is_refused(bench: Trial, slot: Slot) -> None:
    """Answer with a SandboxError in place; refuse a lease with SandboxRejected."""
    answer = await bench.answer(slot, "true", user="no-such-user")
    expect(isinstance(answer, SandboxError), f"found {answer!r}")
    with raising(SandboxRejected, "no-such-user"):
        await bench.slot(dataclasses.replace(bench.spec, user="no-such-user"))
    same(bench.backend.free_slots, 1, "free_slots")


@check(image="image")
async def root_has_the_powers_of_root_in_a_container(bench: Trial) -> None:
    """Let root change all files of the slot, give them away and act as other users; a server may
    use a port below 1024 of the slot's own loopback.
    """
    slot = await bench.slot(dataclasses.replace(bench.spec, user="root"))
    for what, command in POWERS.items():
        result = await bench.sh(slot, command)
        expect(result.ok, f"root cannot {what}: {result.output.strip()}")
    if not (await bench.sh(slot, "command -v python3")).ok:
        return
    code = "import os, socket; socket.create_server(('127.0.0.1', 80)); os.setuid(1234)"
    bound = await bench.sh(slot, f'python3 -c "{code}"')
    expect(bound.ok, f"root cannot use port 80: {bound.output.strip()}")


@check(isolated=True, image="image")
async def root_has_no_power_over_the_host(bench: Trial) -> None:
    """Refuse root of a slot mounts, devices, namespaces and the kernel's settings and log."""
    slot = await bench.slot(dataclasses.replace(bench.spec, user="root"))
    for what, command in REFUSALS.items():
        result = await bench.sh(slot, command)
        expect(not result.ok, f"root of a slot can {what}: {result.output.strip()}")
    status = await bench.out(slot, "grep CapEff /proc/self/status")
    powerful = int(status.split()[1], 16) & (1 << 21 | 1 << 12 | 1 << 16 | 1 << 19 | 1 << 17)
    same(powerful, 0, "of sys_admin, net_admin, sys_module, sys_ptrace and sys_rawio")


@check(isolated=True, image="image")
async def slots_with_the_same_image_share_nothing(bench: Trial) -> None:
    """Show what root of one slot changes to no other slot, neither living nor later."""
    spec = dataclasses.replace(bench.spec, user="root")
    one, other = await bench.slot(spec), await bench.slot(spec)
    await bench.out(
        one, "echo changed >>/etc/passwd; echo x >/usr/bin/new; rm /bin/cat; sleep 4242 &"
    )
    await bench.out(other, "! grep changed /etc/passwd; ! [ -e /usr/bin/new ]; cat /dev/null")
    same(await bench.out(other, COUNT), "0", "processes of the other slot")
    await bench.sh(other, "kill -9 -1")
    same(await bench.out(one, COUNT), "1", "processes that survive another slot's signals")
    fresh = await bench.backend.renew(one)
    await bench.out(fresh, "! grep changed /etc/passwd; ! [ -e /usr/bin/new ]; cat /dev/null")
    same(await bench.out(fresh, COUNT), "0", "processes left")


@check(isolated=True, image="image")
async def a_slot_has_no_network_unless_it_asks(bench: Trial) -> None:
    """Give a slot nothing but a loopback of its own with `network="none"`."""
    slot = await bench.slot(dataclasses.replace(bench.spec, user="root"))
    interfaces = await bench.out(slot, "tail -n +3 /proc/net/dev | cut -d: -f1")
    up = [name for name in interfaces.split() if name not in _UNUSED]
    same(up, ["lo"], "network interfaces")


_UNUSED = (
    "tunl0",
    "sit0",
    "gre0",
    "gretap0",
    "erspan0",
    "ip_vti0",
    "ip6_vti0",
    "ip6tnl0",
    "ip6gre0",
)
"""Interfaces that kernels with these modules put into every network namespace; they are down."""


@check(image="image")
async def a_slots_memory_is_the_tasks(bench: Trial) -> None:
    """Limit memory to `SlotSpec.memory_mb`, and spare the slot when a command takes more."""
    slot = await bench.slot(dataclasses.replace(bench.spec, memory_mb=100))
    # `tail` keeps a line in memory.
    greedy = await bench.sh(slot, "head -c 300000000 /dev/zero | tail -n 1 | wc -c")
    expect(greedy.stdout.strip() != b"300000000", "a command used 300 MB of 100")
    same(await bench.out(slot, "echo alive"), "alive")


@check(image="image")
async def changes_are_those_against_the_image(bench: Trial) -> None:
    """List added, changed and deleted files, and nothing that the slot did not change."""
    backend = _keeper(bench)
    slot = await bench.slot(dataclasses.replace(bench.spec, user="root"))
    same(list(await backend.changes(slot)), [], "changes of a fresh slot")
    await bench.out(
        slot,
        "mkdir -p /srv/new/deep; echo x >'/srv/new/deep/a file'; echo x >>/etc/passwd; "
        "rm /etc/group; touch /dev/shm/x; echo x >/srv/gone; rm /srv/gone; ln -s nowhere /srv/link",
    )
    found = [change for change in await backend.changes(slot) if change.path not in _FOLDERS]
    expected = [
        FileChange("/etc/group", "deleted"),
        FileChange("/etc/passwd", "changed"),
        FileChange("/srv/link", "added"),
        FileChange("/srv/new", "added"),
        FileChange("/srv/new/deep", "added"),
        FileChange("/srv/new/deep/a file", "added"),
    ]
    same(found, expected, "changes")


_FOLDERS = ("/etc", "/srv", "/dev", "/dev/shm")
"""Engines count a directory as changed when an entry of it is."""


@check(image="image")
async def a_restart_keeps_files_and_nothing_else(bench: Trial) -> None:
    """Kill everything, keep files and what was done to those of the image, empty the tmpfs; the
    lease continues under a new `Slot`.
    """
    backend = _keeper(bench)
    slot = await bench.slot(dataclasses.replace(bench.spec, user="root"))
    await bench.out(
        slot,
        "echo kept >/srv/f; chown 1234 /srv/f; rm /etc/group; touch /dev/shm/x; "
        "setsid sleep 4242 & echo x >>/etc/passwd",
    )
    again = await backend.restart(slot)
    expect(again.slot_id != slot.slot_id, "the slot id was used again")
    same((again.trajectory_id, again.spec), (slot.trajectory_id, slot.spec))
    answer = await bench.answer(slot, "true")
    expect(isinstance(answer, SlotLost), f"the old slot answered {answer!r}")
    same(await bench.out(again, COUNT), "0", "processes left")
    kept = "cat /srv/f; stat -c %u /srv/f; [ -e /etc/group ] || echo gone; tail -n 1 /etc/passwd; "
    same(await bench.out(again, kept + "ls /dev/shm"), "kept\n1234\ngone\nx")
    same(bench.backend.free_slots, 1, "free_slots")
    same(await bench.out(await backend.restart(again), kept), "kept\n1234\ngone\nx")


@check(image="image")
async def a_committed_slot_is_an_image_until_its_lease_ends(bench: Trial) -> None:
    """Make an image of a slot's files, from which this slot and others can start; the slot goes on,
    and does not change it.
    """
    backend = _keeper(bench)
    if not bench.backend.capabilities.commits:
        raise NotApplicable("the backend makes no images of slots")
    slot = await bench.slot(dataclasses.replace(bench.spec, user="root"))
    await bench.out(slot, "echo one >/srv/f; rm /etc/group; chmod 600 /srv/f")
    image = await backend.commit(slot)
    await bench.out(slot, "echo two >/srv/f")
    spec = dataclasses.replace(slot.spec, image=image, user=None)
    other = await bench.slot(spec)
    look = "cat /srv/f; stat -c %a /srv/f; [ -e /etc/group ] || echo gone"
    same(await bench.out(other, look), "one\n600\ngone", "in another slot")
    same(list(await backend.changes(other)), [], "changes against the committed image")
    await bench.backend.release(other)
    again = await bench.backend.renew(slot, spec)
    same(await bench.out(again, look), "one\n600\ngone", "in the slot itself")
    original = await bench.backend.renew(again, bench.spec)
    await bench.out(original, "[ -e /etc/group ] && ! [ -e /srv/f ]")


@check(image="image")
async def renewing_may_change_what_a_slot_is(bench: Trial) -> None:
    """Let a renewed slot meet another spec: another user, other variables, other files."""
    slot = await bench.slot(dataclasses.replace(bench.spec, user="1234"))
    same(await bench.out(slot, "id -u"), "1234")
    spec = dataclasses.replace(bench.spec, user="0", env=(("PHASE", "grading"),))
    again = await bench.backend.renew(slot, spec)
    same(again.spec, spec, "spec of the renewed slot")
    same(await bench.out(again, "id -u; echo $PHASE"), "0\ngrading")
    same(bench.backend.free_slots, 1, "free_slots")


def _keeper(bench: SlotBench) -> ImageSlots:
    if not bench.backend.capabilities.images:
        raise NotApplicable("slots of the backend cannot have images")
    backend = bench.backend
    expect(isinstance(backend, ImageSlots), "methods of `ImageSlots` are missing")
    return cast(ImageSlots, backend)
