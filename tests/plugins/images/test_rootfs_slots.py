"""Slots of the local backend whose root file system is an image's."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import tempfile
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tiny_image import write_tiny_image

from hermes_plugins.images.fetch.archives import import_archive
from hermes_plugins.images.rootfs import boot_process, changes, unlinked
from hermes_plugins.images.rootfs import slot as rootfs_slot
from hermes_plugins.images.rootfs.backend import RootfsLocalBackend
from hermes_plugins.images.rootfs.first_process import MACHINES, program
from hermes_plugins.images.rootfs.host import RootfsHost
from hermes_plugins.images.rootfs.slot import DiskUsage
from hermes_plugins.images.rootfs.slots import can_have_images
from hermes_plugins.images.rootfs.steps import RootfsSteps
from hermes_plugins.images.settings import ImageSettings
from hermes_plugins.images.steps import BuildStep, LayerStack
from hermes_plugins.images.store import ImageStore
from hermes_queue.errors import SandboxError, SandboxRejected, SlotKilled, SlotLost
from hermes_queue.images.spec import ImageConfig, ImageSpec
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.base import ExecutionRequest, ExecutionResult, Slot, SlotSpec
from hermes_queue.sandbox.host.paths import remove_tree, slot_directory
from hermes_queue.settings import LocalSandboxSettings

pytestmark = [pytest.mark.rights, pytest.mark.xdist_group("slots with images")]
in_one_loop = pytest.mark.asyncio(loop_scope="module")
CONFIG = ImageConfig(env={"COLOUR": "red"}, workdir="/app", user="ann")
TINY = ImageSpec(reference="tiny:1")
ROOT = SlotSpec(image=TINY, user="0")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[RootfsLocalBackend]:
    if not can_have_images():
        pytest.skip("slots with images need a range of ids and Linux 5.11")
    cache = Path(tempfile.mkdtemp(prefix="hermes-queue-test-"))
    cache.chmod(0o755)
    steps = RootfsSteps.of(cache)
    await asyncio.to_thread(write_tiny_image, cache / "tiny.tar")
    store = ImageStore(cache / "images", ImageSettings(), steps)
    await import_archive(store, "tiny:1", cache / "tiny.tar", CONFIG)
    settings = LocalSandboxSettings(memory_mb=128, image_disk_mb=20)
    backend = RootfsLocalBackend(settings, slots=2, cache=cache)
    await backend.start()
    yield backend
    await backend.stop()
    await steps.close()
    await asyncio.to_thread(remove_tree, cache)


async def run(backend: RootfsLocalBackend, slot: Slot, command: str, **options) -> ExecutionResult:
    [answer] = await backend.execute_batch([ExecutionRequest(slot, command, **options)])
    assert isinstance(answer, ExecutionResult), answer
    return answer


async def out(backend: RootfsLocalBackend, slot: Slot, command: str, **options) -> str:
    result = await run(backend, slot, command, **options)
    assert result.ok, result
    return result.stdout.decode().strip()


def own_files(backend: RootfsLocalBackend, slot: Slot) -> Path:
    return Path(backend._slots[slot.slot_id].fence.directories.root, "upper")


@in_one_loop
async def test_a_slot_is_what_its_image_says(backend):
    slot = await backend.acquire("trajectory", SlotSpec(image=TINY, env=(("SIZE", "7"),)))
    shown = await out(backend, slot, "id -u; id -G; pwd; echo $COLOUR $SIZE $HOME; cat /etc/motd")
    assert shown.split() == ["1001", "1002", "2000", "/app", "red", "7", "/home/ann", "hello"]
    assert (slot.workspace, slot.image_config) == ("/app", CONFIG)
    assert "tiny" in slot.image
    assert not (await run(backend, slot, "touch /srv/x")).ok
    assert await out(backend, slot, "id -u; id -g", user="33:44") == "33\n44"
    await backend.release(slot)


@in_one_loop
async def test_root_inside_owns_the_slot_and_nothing_else(backend):
    root = await backend.acquire("trajectory", ROOT)
    await out(backend, root, "touch /srv/f; chown 7:8 /srv/f; chmod 0 /srv/f; echo x >/srv/f")
    assert await out(backend, root, "stat -c %u:%g:%s /srv/f") == "7:8:2"
    for refused in (
        "mount -t tmpfs x /srv",
        "mknod /srv/d b 8 0",
        "unshare -U true",
        "unshare -m true",
        "echo 1 >/proc/sys/kernel/sysrq",
        "cat /proc/1/environ",
        "cat /dev/kmsg",
    ):
        assert not (await run(backend, root, refused)).ok, refused
    capabilities = await out(backend, root, "grep CapBnd /proc/self/status")
    assert int(capabilities.split()[1], 16) == 0x800405FB
    assert await out(backend, root, "tail -n +3 /proc/net/dev | grep -o '[a-z]*:'") == "lo:"
    with socket.create_server(("127.0.0.1", 0)) as server:
        reached = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        assert not (await run(backend, root, reached)).ok
    await backend.release(root)


@in_one_loop
async def test_files_are_read_and_written_without_programs_of_the_slot(backend):
    slot = await backend.acquire("trajectory", ROOT)
    await out(backend, slot, "rm /usr/bin/cat /usr/bin/head; mv -f /etc/motd /usr/bin/bash")
    assert await backend.read_file(slot, "/srv/kept") == b"kept\n"
    await backend.write_file(slot, "/srv/new/deep", b"\0\xff")
    assert await backend.read_file(slot, "/srv/new/deep") == b"\0\xff"
    for path in ("/srv", "/srv/none", "/dev/null"):
        with pytest.raises(FileNotFoundError):
            await backend.read_file(slot, path)
    await backend.release(slot)


@in_one_loop
async def test_a_restart_follows_no_link_in_place_of_a_mount_point(backend):
    slot = await backend.acquire("trajectory", ROOT)
    await out(backend, slot, "echo 1 >/srv/f; echo x >>/etc/passwd; touch /dev/shm/x")
    (own_files(backend, slot) / "etc" / "hosts").symlink_to("/srv/f")
    slot = await backend.restart(slot)
    assert await out(backend, slot, "cat /srv/f; ls /dev/shm") == "1"
    changed = {(change.kind, change.path) for change in await backend.changes(slot)}
    assert changed == {("added", "/srv/f"), ("changed", "/etc/passwd")}
    (own_files(backend, slot) / "dev").symlink_to("/srv")
    with pytest.raises(SandboxError, match="/dev is no directory"):
        await backend.restart(slot)
    assert backend.free_slots == 2


@in_one_loop
async def test_a_slot_goes_on_without_its_list_of_users_and_with_a_closed_root(backend):
    spec = SlotSpec(image=TINY, user="ann")
    slot = await backend.acquire("trajectory", spec)
    await out(backend, slot, "rm /etc/passwd /etc/group; chmod 0 /", user="0")
    slot = await backend.restart(slot)
    assert await out(backend, slot, "id -u; echo $HOME") == "1001\n/home/ann"
    image = await backend.commit(slot)
    slot = await backend.renew(slot, SlotSpec(image=image, user="ann"))
    assert await out(backend, slot, "id -u; echo $HOME") == "1001\n/home/ann"
    await backend.release(slot)


@in_one_loop
async def test_a_committed_slot_keeps_links_modes_owners_and_deletions(backend):
    slot = await backend.acquire("trajectory", ROOT)
    await out(
        backend,
        slot,
        "cd /srv; echo x >a; ln a b; chown 7:8 a; chmod 4751 a; rm kept; ln -s /etc/motd c; "
        "rm -rf /app; mkdir /app; chmod 700 /app; touch /app/new",
    )
    image = await backend.commit(slot)
    slot = await backend.renew(slot, SlotSpec(image=image, user="0"))
    shown = await out(
        backend, slot, "stat -c '%n %u:%g %a %h' /srv/*; stat -c '%a' /app; cat /srv/c; ls /app"
    )
    assert shown.splitlines() == [
        *("/srv/a 7:8 4751 2", "/srv/b 7:8 4751 2", "/srv/c 0:0 777 1", "700"),
        *("hello", "new"),
    ]
    assert await backend.changes(slot) == []
    await backend.release(slot)
    with pytest.raises(SandboxRejected, match="ended with the lease"):
        await backend.acquire("trajectory", SlotSpec(image=image))


@in_one_loop
async def test_nobody_waits_for_the_files_of_a_slot_that_has_ended(backend, monkeypatch):
    deleting, may_end = [], threading.Event()
    remove = RootfsHost.remove

    def slow(self: RootfsHost, path: Path) -> None:
        if path.name.startswith("slot-"):
            deleting.append(path)
            may_end.wait()
        remove(self, path)

    monkeypatch.setattr(RootfsHost, "remove", slow)
    slot = await backend.acquire("trajectory", ROOT)
    left = own_files(backend, slot)
    try:
        async with asyncio.timeout(20):
            fresh = await backend.renew(slot)
            assert await out(backend, fresh, "echo alive") == "alive"
            await backend.release(fresh)
        assert left.exists()
    finally:
        may_end.set()
    await asyncio.gather(*backend._rootfs._removing)
    assert len(deleting) == 2
    assert not any(path.exists() for path in deleting)


@in_one_loop
async def test_a_slot_whose_files_are_not_compared_in_time_may_be_its_agents_doing(
    backend, monkeypatch
):
    monkeypatch.setattr(changes, "TIMEOUT_S", 0.0)
    slot = await backend.acquire("trajectory", ROOT)
    with pytest.raises(FilesRefused, match="were not compared"):
        await backend.changes(slot)
    await backend.release(slot)


@in_one_loop
async def test_a_slot_that_fills_the_disk_is_ended_by_its_own_fault(backend, monkeypatch):
    monkeypatch.setattr(rootfs_slot, "MEASURE_S", 0.05)
    slot = await backend.acquire("trajectory", ROOT)
    fill = ExecutionRequest(slot, "head -c 30M /dev/zero >/srv/big; sleep 60")
    [answer] = await backend.execute_batch([fill])
    assert isinstance(answer, SlotKilled)
    assert "more than 20 MB" in str(answer)
    await backend.release(slot)


@in_one_loop
@pytest.mark.parametrize("then", ["", "exec 4</proc/self/fd/3 3>&-; "], ids=["written", "read"])
async def test_files_without_a_name_take_space_as_long_as_they_are_open(backend, monkeypatch, then):
    monkeypatch.setattr(rootfs_slot, "MEASURE_S", 0.05)
    slot = await backend.acquire("trajectory", ROOT)
    unnamed = "exec 3>/srv/big; rm /srv/big; head -c 30M /dev/zero >&3; "
    [answer] = await backend.execute_batch([ExecutionRequest(slot, f"{unnamed}{then}sleep 60")])
    assert isinstance(answer, SlotKilled)
    assert "more than 20 MB" in str(answer)
    await backend.release(slot)


@in_one_loop
async def test_files_without_a_name_that_take_no_space_of_the_slot_do_not_count(backend):
    slot = await backend.acquire("trajectory", ROOT)
    fence = backend._slots[slot.slot_id].fence
    assert unlinked.is_idle(fence.init_pid)
    of_the_image = "exec 3</usr/bin/bash; rm /usr/bin/bash; "
    in_memory = "exec 4>/dev/shm/big; rm /dev/shm/big; head -c 9M /dev/zero >&4; "
    pause = f"{of_the_image}{in_memory}echo >/srv/begun; sleep 60"
    holding = asyncio.create_task(backend.execute_batch([ExecutionRequest(slot, pause)]))
    while not (fence.directories.upper / "srv" / "begun").exists():
        await asyncio.sleep(0.01)
    assert not unlinked.is_idle(fence.init_pid)
    assert unlinked.unlinked_bytes(fence.init_pid, str(fence.directories.upper)) == 0
    await backend.release(slot)
    await holding


@in_one_loop
async def test_a_slot_whose_files_cannot_be_measured_now_is_measured_later(backend, monkeypatch):
    host, failures = backend._rootfs.host, [OSError("no process is left"), SandboxError("nor now")]
    measure = host.measure

    async def sometimes(*of: Any) -> DiskUsage | None:
        if failures:
            raise failures.pop()
        return await measure(*of)

    monkeypatch.setattr(rootfs_slot, "MEASURE_S", 0.05)
    monkeypatch.setattr(host, "measure", sometimes)
    slot = await backend.acquire("trajectory", ROOT)
    fill = ExecutionRequest(slot, "head -c 30M /dev/zero >/srv/big; sleep 60")
    [answer] = await backend.execute_batch([fill])
    assert isinstance(answer, SlotKilled)
    await backend.release(slot)


@in_one_loop
async def test_a_slot_that_is_ended_because_the_disk_is_slow_has_not_killed_itself(
    backend, monkeypatch
):
    async def too_slow(*_: object) -> None:
        return None

    monkeypatch.setattr(rootfs_slot, "MEASURE_S", 0.05)
    monkeypatch.setattr(backend._rootfs.host, "measure", too_slow)
    slot = await backend.acquire("trajectory", ROOT)
    [answer] = await backend.execute_batch([ExecutionRequest(slot, "sleep 60")])
    assert isinstance(answer, SlotLost)
    assert not isinstance(answer, SlotKilled)
    assert "could not be counted in time" in str(answer)
    await backend.release(slot)


@in_one_loop
@pytest.mark.parametrize(("disk_mb", "written"), [(5, "10M"), (40, "50M")])
async def test_a_task_has_the_disk_space_that_it_names(backend, monkeypatch, disk_mb, written):
    monkeypatch.setattr(rootfs_slot, "MEASURE_S", 0.05)
    slot = await backend.acquire("trajectory", replace(ROOT, disk_mb=disk_mb))
    command = f"head -c {disk_mb - 2}M /dev/zero >/srv/big; sleep 0.5; echo there"
    if disk_mb > 20:  # more than other tasks may have
        assert await out(backend, slot, command) == "there"
    fill = ExecutionRequest(slot, f"head -c {written} /dev/zero >/srv/big; sleep 60")
    [answer] = await backend.execute_batch([fill])
    assert isinstance(answer, SlotKilled)
    assert f"more than {disk_mb} MB of disk space; its task wants no more" in str(answer)
    await backend.release(slot)


@in_one_loop
async def test_a_slot_that_fills_the_disk_loses_its_commands_by_its_own_fault(backend, monkeypatch):
    """Whatever is heard first: that its first process is dead, or that nothing starts commands."""
    began = asyncio.Event()

    async def too_much(*_: object) -> DiskUsage:
        await began.wait()
        running.fence.spawner.close()
        return DiskUsage(10**6, 1)

    monkeypatch.setattr(rootfs_slot, "MEASURE_S", 0.0)
    monkeypatch.setattr(backend._rootfs.host, "measure", too_much)
    slot = await backend.acquire("trajectory", ROOT)
    running = backend._slots[slot.slot_id]
    command = asyncio.create_task(backend.execute_batch([ExecutionRequest(slot, "sleep 60")]))
    while not running.fence.spawner._commands:
        await asyncio.sleep(0)
    began.set()
    [answer] = await command
    assert isinstance(answer, SlotKilled)
    with pytest.raises(SlotKilled):
        await running.open_port()
    await backend.release(slot)


@in_one_loop
async def test_a_task_that_wants_more_than_the_worker_allows_is_refused(backend):
    with pytest.raises(SandboxRejected, match="HERMES_QUEUE_IMAGES_MAX_MEMORY_MB=99999"):
        await backend.acquire("trajectory", SlotSpec(image=TINY, memory_mb=99_999))
    with pytest.raises(SandboxRejected, match="HERMES_QUEUE_IMAGES_MAX_DISK_MB=99999"):
        await backend.acquire("trajectory", SlotSpec(image=TINY, disk_mb=99_999))
    with pytest.raises(SandboxRejected, match="HERMES_QUEUE_IMAGES_NETWORK=open"):
        await backend.acquire("trajectory", SlotSpec(image=TINY, network="open"))


@in_one_loop
async def test_a_build_step_leaves_its_changes_and_nothing_of_the_build(backend):
    steps = RootfsSteps(backend._rootfs.host)
    held = await backend._rootfs.hold(TINY)
    upper = backend._cache / "layer"
    await asyncio.to_thread(slot_directory, upper, owner=steps.host_id)
    stack = LayerStack(held.rootfs.layers, upper)
    argv = ("/bin/bash", "-c", "echo $http_proxy; id -u >/srv/who && exit 4")
    as_ann = await steps.run(stack, BuildStep(argv, user="ann:2000"))
    assert b"Permission denied" in as_ann.output
    done = await steps.run(stack, BuildStep(argv))
    assert (done.exit_code, done.output.startswith(b"http://127.0.0.1:")) == (4, True)
    left = sorted(str(path.relative_to(upper)) for path in upper.rglob("*"))
    assert left == ["srv", "srv/who"]
    sleep = BuildStep(("/bin/bash", "-c", "sleep 60"), timeout_s=0.2, network=False)
    assert (await steps.run(stack, sleep)).timed_out
    held.release()
    await steps._spawners.close()


def test_a_mount_point_is_never_made_or_found_through_a_link(tmp_path):
    (tmp_path / "etc").symlink_to(tmp_path.parent)
    (tmp_path / "file").symlink_to("/etc/passwd")
    tree = str(tmp_path)
    assert not boot_process.make_point(tree, "/etc/hosts", is_directory=False)
    assert not boot_process.make_point(tree, "/file", is_directory=False)
    assert not boot_process.make_point(tree, "/etc", is_directory=True)
    assert boot_process.make_point(tree, "/a/b", is_directory=True)
    assert boot_process.make_point(tree, "/a/c", is_directory=False)
    assert not (tmp_path.parent / "hosts").exists()


@pytest.mark.parametrize("machine", MACHINES)
def test_the_first_process_is_a_whole_program(machine):
    data = program(machine)
    assert data[:4] == b"\x7fELF"
    assert int.from_bytes(data[64 + 32 : 64 + 40], "little") == len(data)


def test_the_first_process_waits_once_it_got_a_byte(tmp_path):
    path = tmp_path / "init"
    path.write_bytes(program(platform.machine()))
    path.chmod(0o755)
    ready, tell = os.pipe()
    hold, go = os.pipe()
    streams = [(os.POSIX_SPAWN_DUP2, hold, 0), (os.POSIX_SPAWN_DUP2, tell, 1)]
    pid = os.posix_spawn(path, ["sleep"], {}, file_actions=streams)
    assert len(os.read(ready, 1)) == 1
    os.write(go, b"\n")
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    for descriptor in (ready, tell, hold, go):
        os.close(descriptor)
