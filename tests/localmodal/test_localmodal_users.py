"""Users inside sandboxes, and what root inside can reach of the host."""

from __future__ import annotations

import os
import socket

import pytest

AS_USER = "setpriv --reuid=20001 --regid=20001 --clear-groups --no-new-privs"


@pytest.fixture(autouse=True)
def _needs_a_range(request, localmodal):
    if "one_id" in request.node.name:
        return
    if os.geteuid() == 0:
        assert localmodal.slots is None
    elif localmodal.slots == 1:
        pytest.skip("this user cannot map a range of uids")


async def test_root_runs_commands_as_another_uid(sandbox, sh):
    assert await sh(sandbox, f"{AS_USER} id") == "uid=20001 gid=20001 groups=20001"


async def test_root_gives_files_away_and_others_cannot_touch_them(sandbox, sh):
    await sh(sandbox, "mkdir -m 700 /slot && echo mine >/slot/f && chown -R 20001:20001 /slot")
    assert await sh(sandbox, f"stat -c %u:%g /slot/f; {AS_USER} cat /slot/f") == "20001:20001\nmine"
    other = AS_USER.replace("20001", "20002")
    assert (
        await sh(sandbox, f"{other} cat /slot/f 2>&1 || true") == "cat: /slot/f: Permission denied"
    )


async def test_root_kills_what_another_uid_runs_and_the_other_cannot_kill_it(sandbox, sh, run):
    await sh(sandbox, f"{AS_USER} sleep 4714 & disown; until pgrep -u 20001; do sleep 0.05; done")
    other = AS_USER.replace("20001", "20002")
    assert (await run(sandbox, "sh", "-c", f"{other} pkill -9 -f '[s]leep 4714'"))[2] != 0
    await sh(sandbox, "pkill -9 -u 20001")
    await sh(sandbox, "while pgrep -f '[s]leep 4714'; do sleep 0.05; done")


async def test_root_reads_the_environment_of_others_and_sets_their_limits(sandbox, sh):
    await sh(sandbox, f"MARK=x {AS_USER} sleep 4715 & disown; until pgrep -u 20001; do :; done")
    seen = "pid=$(pgrep -u 20001); tr '\\0' '\\n' </proc/$pid/environ | grep MARK"
    limit = (
        "prlimit --pid $pid --nofile=100:100 && prlimit --pid $pid --nofile -o HARD --noheadings"
    )
    assert (await sh(sandbox, f"{seen}; {limit}")).split() == ["MARK=x", "100"]


async def test_users_reach_programs_and_shared_directories(sandbox, sh):
    script = (
        "python3 -c print\\(1\\); echo x >/tmp/f; echo x >/dev/shm/f; echo x >/var/tmp/f; ls /opt"
    )
    assert await sh(sandbox, f'{AS_USER} sh -ec "{script}"') == "1\npython"


async def test_root_cannot_change_mounts_or_make_namespaces(sandbox, run):
    for attempt in (
        "mount -o remount,rw,bind /usr",
        "umount /usr",
        "mount -t tmpfs none /mnt",
        "unshare --user true",
        "unshare --mount true",
        "touch /usr/x",
        "echo 9 >/proc/sys/user/max_user_namespaces; unshare --user true",
        "chroot /proc/1/root/../.. ls /root/.ssh",
    ):
        assert (await run(sandbox, "sh", "-c", attempt))[2] != 0, attempt


async def test_files_of_the_host_are_not_inside(sandbox, sh, tmp_path):
    (tmp_path / "secret").write_text("host")
    assert await sh(sandbox, f"ls {tmp_path} 2>/dev/null || echo nothing") == "nothing"
    assert await sh(sandbox, "ls -A /home /srv /root; cat /etc/shadow 2>/dev/null || true") == (
        "/home:\n\n/root:\n\n/srv:"
    )


async def test_files_of_the_sandbox_belong_to_nobody_outside(localmodal_server, sandbox, sh):
    await sh(sandbox, "echo x >/f && chown 20001 /f && chmod 4755 /f")
    [box] = [b for b in localmodal_server._background.server.store.boxes.values() if not b.result]
    if os.geteuid() == 0:
        assert (box.enclosure.rootfs / "f").stat().st_uid == 0x7000_0000 + 20001


async def test_other_processes_of_the_host_are_not_seen(sandbox, sh):
    assert int(await sh(sandbox, "ls -d /proc/[0-9]* | wc -l")) < 8


async def test_without_network_the_hosts_loopback_is_out_of_reach(create, run):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        attempt = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
        blocked = await create(block_network=True)
        assert (await run(blocked, "bash", "-c", attempt))[2] != 0
        opened = await create()
        assert (await run(opened, "bash", "-c", attempt))[2] == 0


async def test_a_memory_limit_ends_the_command_that_exceeds_it(create, run):
    from hermes_queue.sandbox.host import cgroups

    if not cgroups.available():
        pytest.skip("control groups are not writable here")
    sandbox = await create(memory=(64, 128))
    _, _, code = await run(sandbox, "python3", "-c", "x = bytearray(400 << 20)")
    assert code == 137
    assert (await run(sandbox, "true"))[2] == 0
