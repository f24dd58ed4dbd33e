"""Slots whose task brings an image: directory, user, variables, limits, and what is kept."""

from __future__ import annotations

import asyncio
import dataclasses
import platform

import pytest
from container_engines import BASE

from hermes_queue.errors import SandboxError, SandboxRejected, SlotKilled, SlotLost
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.base import ExecutionRequest, SlotSpec

IMAGE = ImageSpec(BASE)
SPEC = SlotSpec(image=IMAGE)


async def test_commands_run_as_root_with_the_images_variables(bench):
    slot = await bench.slot(dataclasses.replace(SPEC, env=(("A", "x y"),)))
    assert await bench.out(slot, "id -u; pwd; echo $HOME; echo $A") == "0\n/\n/root\nx y"
    assert "/usr/local/sbin" in await bench.out(slot, "echo $PATH")
    assert slot.image_config is not None
    assert slot.image.startswith(f"{BASE}, sha256:")


async def test_root_may_install_programs_and_become_another_user(bench):
    slot = await bench.slot(SPEC)
    await bench.out(slot, "useradd --create-home alice && chown alice /srv && mkdir /app")
    assert (
        await bench.out(slot, "su alice -c 'id -un; touch /srv/x && echo $HOME'")
        == "alice\n/home/alice"
    )
    for forbidden in (
        "mount -t tmpfs x /mnt",
        "mknod /x b 7 0 && cat /x",
        "echo 1 >/proc/sys/kernel/panic",
    ):
        assert not (await bench.sh(slot, forbidden)).ok, forbidden


async def test_the_tasks_user_and_directory_replace_the_images(bench):
    spec = dataclasses.replace(SPEC, user="nobody", workdir="/made/for/it")
    slot = await bench.slot(spec)
    assert slot.workspace == "/made/for/it"
    assert await bench.out(slot, "id -un; pwd") == "nobody\n/made/for/it"
    assert await bench.out(slot, "id -un", user="0") == "root"
    assert await bench.out(slot, "id -u", user="4321") == "4321"


async def test_a_command_of_another_user_is_killed_with_its_whole_tree(bench):
    slot = await bench.slot(dataclasses.replace(SPEC, user="nobody"))
    tree = "(setsid sleep 4242 &) ; sleep 4242 & env -i sleep 4242"
    assert (await bench.sh(slot, tree, timeout_s=1)).timed_out
    assert await bench.out(slot, "pgrep -fc '[s]leep 4242' || true", user="0") == "0"


async def test_renewing_returns_to_the_image_or_to_another_one(bench):
    slot = await bench.slot(SPEC)
    await bench.out(slot, "rm -rf /srv; echo x >/etc/motd; touch /new; sleep 4242 & true")
    again = await bench.backend.renew(slot)
    assert await bench.out(again, "ls -d /srv; ls /new 2>&1 || true; cat /etc/motd") != ""
    assert not (await bench.sh(again, "test -e /new")).ok
    plain = await bench.backend.renew(again, SlotSpec())
    assert await bench.out(plain, "id -u; pwd") == "20000\n/workspace"


async def test_changes_name_files_and_no_directory_that_only_holds_them(bench):
    slot = await bench.slot(SPEC)
    await bench.out(
        slot, "mkdir -p /app/deep && echo 1 >/app/deep/f; echo x >>/etc/passwd; rm -r /srv"
    )
    found = {change.path: change.kind for change in await bench.backend.changes(slot)}
    assert found == {
        "/app": "added",
        "/app/deep": "added",
        "/app/deep/f": "added",
        "/etc/passwd": "changed",
        "/srv": "deleted",
    }


async def test_an_untouched_slot_has_no_changes(bench):
    slot = await bench.slot(SPEC)
    await bench.out(slot, "true; cat /etc/passwd >/dev/null")
    assert list(await bench.backend.changes(slot)) == []


async def test_a_restart_keeps_files_and_ends_processes(bench):
    slot = await bench.slot(SPEC)
    await bench.out(slot, "echo kept >/root/f; echo gone >/dev/shm/f; setsid sleep 4242 & true")
    again = await bench.backend.restart(slot)
    assert again.slot_id != slot.slot_id
    assert isinstance(await bench.answer(slot, "true"), SlotLost)
    assert (
        await bench.out(again, "cat /root/f; ls /dev/shm; pgrep -fc '[s]leep 4242' || true")
        == "kept\n0"
    )


async def test_a_committed_slot_is_an_image_until_its_lease_ends(bench):
    slot = await bench.slot(SPEC)
    await bench.out(slot, "echo kept >/srv/f")
    image = await bench.backend.commit(slot)
    other = await bench.slot(SlotSpec(image=image))
    assert await bench.out(other, "cat /srv/f") == "kept"
    assert other.image_config == slot.image_config
    await bench.backend.release(other)
    renewed = await bench.backend.renew(slot, SlotSpec(image=image))
    assert await bench.out(renewed, "cat /srv/f") == "kept"
    await bench.backend.release(renewed)
    with pytest.raises(SandboxRejected):
        await bench.slot(SlotSpec(image=image))


async def test_a_slot_is_held_to_its_tasks_limits(bench):
    slot = await bench.slot(dataclasses.replace(SPEC, memory_mb=128, cpus=0.5))
    result = await bench.sh(slot, "python3 -c 'bytearray(400 << 20)'")
    assert result.exit_code == 137
    assert "128 MB" in result.notice
    assert await bench.out(slot, "echo alive") == "alive"


async def test_a_slot_with_all_the_processes_it_may_have_is_a_result_and_lives(make_backend):
    bench = await make_backend(max_pids=40)
    slot = await bench.slot(SPEC)
    many = "for i in $(seq 100); do sleep 600 & done; wait"
    result = await bench.sh(slot, f"echo kept >/root/f; {many}", timeout_s=3)
    assert result.timed_out
    assert "fork" in result.output
    assert await bench.out(slot, "cat /root/f") == "kept"


async def test_what_the_worker_does_not_allow_is_refused_before_a_slot(make_backend):
    bench = await make_backend(images={"allowed": ["debian:*"], "max_memory_mb": 512})
    refused = {
        "HERMES_QUEUE_IMAGES_ALLOWED": SPEC,
        "HERMES_QUEUE_IMAGES_MAX_MEMORY_MB": SlotSpec(image=ImageSpec("debian:x"), memory_mb=1024),
        "HERMES_QUEUE_IMAGES_MAX_CPUS": SlotSpec(image=ImageSpec("debian:x"), cpus=64),
        "HERMES_QUEUE_IMAGES_NETWORK": SlotSpec(image=ImageSpec("debian:x"), network="open"),
    }
    for setting, spec in refused.items():
        with pytest.raises(SandboxRejected, match=setting):
            await bench.backend.prepare(spec)
    assert bench.backend.free_slots == 2


async def test_a_slot_with_network_has_one_of_its_own_and_not_the_hosts(make_backend, kind):
    bench = await make_backend(images={"network": "open"})
    try:
        slot = await bench.slot(dataclasses.replace(SPEC, network="open"))
    except SandboxError as error:
        if kind == "podman" and "netavark" in str(error):
            pytest.skip(f"this kernel lets podman make no bridge: {error}")
        raise
    names = await bench.out(slot, "tail -n +3 /proc/net/dev | cut -d: -f1")
    assert sorted(names.split()) == ["eth0", "lo"]


async def test_a_port_of_a_slot_with_an_image_reaches_the_worker(bench):
    slot = await bench.slot(SPEC)

    class Hello(asyncio.Protocol):
        def connection_made(self, transport):
            transport.write(b"hello")
            transport.close()

    listening = await bench.backend.listen(slot, Hello)
    assert await bench.out(slot, f"cat </dev/tcp/127.0.0.1/{listening.port}") == "hello"
    await listening.close()


END_FIRST = """
import ctypes, os
ptrace = ctypes.CDLL(None).ptrace
ptrace.argtypes = [ctypes.c_long] * 2 + [ctypes.c_void_p] * 2
ptrace(16, 1, None, None)  # attach
os.waitpid(1, 0x40000000)
registers = (ctypes.c_ulonglong * 27)()
ptrace(12, 1, None, ctypes.addressof(registers))
ptrace(4, 1, registers[16], 0x050F)  # at its instruction pointer: syscall
registers[10], registers[14], registers[15] = 231, 3, 2**64 - 1  # exit_group(3)
ptrace(13, 1, None, ctypes.addressof(registers))
ptrace(7, 1, None, None)
"""


async def test_a_slot_that_ends_its_own_container_has_ended_itself(bench, kind):
    if kind != "docker" or platform.machine() != "x86_64":
        pytest.skip("the program is for x86_64, and Podman forbids it")
    slot = await bench.slot(SPEC)
    request = ExecutionRequest(slot, f"python3 -c '{END_FIRST}'")
    for each in (request, ExecutionRequest(slot, "true")):
        [answer] = await bench.backend.execute_batch([each])
        assert isinstance(answer, SlotKilled), answer
    await bench.backend.release(slot)


async def test_a_slot_without_its_shell_is_not_restarted_but_renewed(bench):
    slot = await bench.slot(SPEC)
    await bench.sh(slot, "rm /bin/sh")
    with pytest.raises(FilesRefused):
        await bench.backend.restart(slot)
    fresh = await bench.backend.renew(slot)
    assert await bench.out(fresh, "ls /bin/sh") == "/bin/sh"
    await bench.backend.release(fresh)
    assert await bench.backend.list_sandboxes(bench.backend.labels) == []
