"""Every backend passes the same checks. Add yours to `BACKENDS` in conftest.py, nothing else."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_queue.errors import EnvBug, EnvInfraError, SandboxError, SandboxRejected, SlotLost
from hermes_queue.sandbox.base import AssetSpec, ExecutionRequest, ExecutionResult, SlotSpec

# Written so that the pattern does not find the shell that carries it on its command line.
COUNT = "pgrep -fc '[s]leep 4242' || true"


def asset(script: str, **options: float) -> AssetSpec:
    """One that no other test, run or backend has built before."""
    key = secrets.token_hex(8)
    return AssetSpec("test", key, script, f"/opt/assets/test-{key}", **options)


# --- commands ---------------------------------------------------------------------------


async def test_a_non_zero_exit_is_a_result_not_an_error(bench):
    slot = await bench.slot()
    result = await bench.sh(slot, "echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert not result.timed_out
    assert not result.truncated


async def test_death_by_a_signal_is_reported_as_a_shell_does(bench):
    slot = await bench.slot()
    assert (await bench.sh(slot, "kill -TERM $$")).exit_code == 128 + signal.SIGTERM


async def test_a_sigkill_of_its_own_is_a_result(bench):
    slot = await bench.slot()
    for end in ("kill -KILL $$", "exit 137", "(kill -KILL $BASHPID)"):
        assert (await bench.sh(slot, f"echo x; {end}")).exit_code == 128 + signal.SIGKILL, end
    assert await bench.out(slot, "echo alive") == "alive"


async def test_stdin_and_output_are_bytes(bench):
    slot = await bench.slot()
    everything = bytes(range(256)) * 300
    result = await bench.sh(slot, "cat; cat >&2", stdin=everything)
    assert result.stdout == everything
    assert result.stderr == b""


async def test_a_command_without_stdin_reads_an_empty_one(bench):
    slot = await bench.slot()
    assert (await bench.sh(slot, "wc -c", timeout_s=10)).stdout.strip() == b"0"


async def test_invalid_utf8_is_kept_and_shown_replaced(bench):
    slot = await bench.slot()
    result = await bench.sh(slot, r"printf 'a\xff\xfeb'")
    assert result.stdout == b"a\xff\xfeb"
    assert result.output == "a��b"


async def test_a_command_line_may_hold_any_text_and_a_megabyte_of_it(bench):
    slot = await bench.slot()
    assert await bench.out(slot, "echo 'ü $HOME \"x\"'") == 'ü $HOME "x"'
    assert await bench.out(slot, f"x={'a' * (1 << 20)}; echo ${{#x}}") == str(1 << 20)
    assert await bench.out(slot, f"cat\n: {'a' * (1 << 20)}", stdin=b"in") == "in"


async def test_long_output_keeps_head_and_tail(bench):
    slot = await bench.slot()
    command = "echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last"
    result = await bench.sh(slot, f"{{ {command}; }} | tee >(cat >&2)", max_output_bytes=10_000)
    for stream in (result.stdout, result.stderr):
        assert stream.startswith(b"first\nxxx")
        assert stream.endswith(b"xxx\nlast\n")
        left_out = 5_000_000 + len(b"first\n\nlast\n") - 10_000
        assert f"\n[... {left_out} bytes left out ...]\n".encode() in stream
        assert len(stream) < 10_100
    assert result.truncated


async def test_a_command_can_open_its_output_by_name(bench):
    slot = await bench.slot()
    result = await bench.sh(slot, "echo out >/dev/stdout && echo err >/dev/stderr")
    assert result.ok is bench.candidate.named_streams
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n") or not result.ok


async def test_output_that_just_fits_is_whole(bench):
    slot = await bench.slot()
    result = await bench.sh(slot, "head -c 1001 /dev/zero", max_output_bytes=1001)
    assert result.stdout == bytes(1001)
    assert not result.truncated


async def test_cwd_and_environment_are_the_requests(bench):
    slot = await bench.slot()
    assert await bench.out(slot, "pwd -P") == slot.workspace
    assert await bench.out(slot, "pwd -P", cwd="/usr") == "/usr"
    assert await bench.out(slot, 'echo "$A"', env={"A": "x y"}) == "x y"
    assert (await bench.sh(slot, "true", cwd="/no/such/place")).exit_code != 0


async def test_the_workers_environment_does_not_reach_commands(bench, monkeypatch):
    monkeypatch.setenv("WORKER_SECRET", "hunter2")
    slot = await bench.slot()
    assert "hunter2" not in await bench.out(slot, "env")


async def test_the_environment_is_the_same_on_every_backend(bench):
    slot = await bench.slot()
    found = dict(line.split("=", 1) for line in (await bench.out(slot, "env")).splitlines())
    assert found.pop("PWD") == slot.workspace
    for own in ("PATH", "HOME", "TMPDIR", "HQ_COMMAND_ID", "SHLVL", "_"):
        del found[own]
    found.pop("HQ_SLOT", None)  # what marks the processes of a slot that has no uid of its own
    assert found == {"LANG": "C.UTF-8", "USER": "agent", "LOGNAME": "agent"}


async def test_python_is_the_workers_version_under_both_names(bench):
    slot = await bench.slot()
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name in ("python", "python3"):
        version = await bench.out(
            slot, f"{name} -c 'import sys, ssl, sqlite3; print(\"%d.%d\" % sys.version_info[:2])'"
        )
        assert version == wanted


async def test_fifty_commands_run_at_once(bench):
    slots = [await bench.slot(), await bench.slot()]
    requests = [
        ExecutionRequest(slots[n % 2], f"echo {n}; sleep 0.2; echo {n} >&2") for n in range(50)
    ]
    answers = await bench.backend.execute_batch(requests)
    assert [a.stdout for a in answers] == [f"{n}\n".encode() for n in range(50)]
    assert [a.stderr for a in answers] == [f"{n}\n".encode() for n in range(50)]


async def test_a_command_over_the_memory_limit_fails_and_the_slot_lives(bench):
    slot = await bench.slot()
    result = await bench.sh(slot, "exec python3 -c 'bytearray(600 << 20)'")
    assert result.exit_code != 0
    assert await bench.out(slot, "echo alive") == "alive"


# --- time and trees ---------------------------------------------------------------------


async def test_a_timeout_is_reported_with_the_output_so_far(bench):
    slot = await bench.slot()
    result = await bench.sh(slot, "echo begun; sleep 4242", timeout_s=3)
    assert (result.exit_code, result.timed_out, result.stdout) == (124, True, b"begun\n")


TREES = {
    "child": "sleep 4242 & wait",
    "ignoring signals": "trap '' TERM INT HUP; sleep 4242 & wait",
    "own session": "setsid sleep 4242 & setsid --fork sleep 4242; sleep 4242",
    "double fork": "(sleep 4242 &) ; (setsid sh -c 'sleep 4242 & sleep 4242' &) ; sleep 4242",
    "cleared environment": "env -i setsid --wait sleep 4242",
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
async def test_a_timeout_kills_the_whole_tree(bench, tree):
    slot = await bench.slot()
    assert (await bench.sh(slot, tree, timeout_s=0.5)).timed_out
    assert await bench.out(slot, COUNT) == "0"


async def test_a_timeout_spares_the_slots_other_commands(bench):
    slot = await bench.slot()
    slow = ExecutionRequest(slot, "sleep 1; echo done")
    stuck = ExecutionRequest(slot, "sleep 4242", timeout_s=0.3)
    done, killed = await bench.backend.execute_batch([slow, stuck])
    assert (done.stdout, killed.timed_out) == (b"done\n", True)


async def test_cancellation_kills_the_whole_tree(bench):
    slot = await bench.slot()
    command = "(setsid sleep 4242 &) ; touch begun; sleep 4242"
    task = asyncio.create_task(bench.sh(slot, command))
    while not (await bench.sh(slot, "test -e begun")).ok:
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await bench.out(slot, COUNT) == "0"


async def test_a_background_server_outlives_its_command_and_dies_with_the_slot(bench):
    slot = await bench.slot()
    # It keeps both pipes, and goes on writing to them after the command is over.
    server = "(while sleep 0.05; do echo noise; echo x >>beats; done) &"
    result = await bench.sh(slot, f"{server} sleep 4242 & echo started", timeout_s=20)
    assert (result.exit_code, result.timed_out) == (0, False)
    assert result.stdout.startswith(b"started\n")
    before = int(await bench.out(slot, "cat beats | wc -l"))
    for _ in range(200):
        if int(await bench.out(slot, "cat beats | wc -l")) > before + 3:
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("the server died with its command")
    renewed = await bench.backend.renew(slot)
    assert await bench.out(renewed, COUNT) == "0"


# --- leases -----------------------------------------------------------------------------


async def test_acquire_waits_for_a_free_slot(bench):
    first, _ = await bench.slot(), await bench.slot()
    assert bench.backend.free_slots == 0
    waiting = asyncio.create_task(bench.slot())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await bench.backend.release(first)
    third = await waiting
    assert third.slot_id != first.slot_id
    assert bench.backend.free_slots == 0


async def test_a_cancelled_acquire_takes_no_slot(bench):
    slots = [await bench.slot(), await bench.slot()]
    waiting = asyncio.create_task(bench.slot())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    for slot in slots:
        await bench.backend.release(slot)
    assert bench.backend.free_slots == 2


async def test_releasing_twice_frees_one_slot(bench):
    slot, _ = await bench.slot(), await bench.slot()
    await bench.backend.release(slot)
    await bench.backend.release(slot)
    assert bench.backend.free_slots == 1


async def test_a_released_slot_is_lost_in_place(bench):
    gone, live = await bench.slot(), await bench.slot()
    await bench.backend.release(gone)
    dead, answer = await bench.backend.execute_batch(
        [ExecutionRequest(gone, "true"), ExecutionRequest(live, "true")]
    )
    assert isinstance(dead, SlotLost)
    assert isinstance(answer, ExecutionResult)
    with pytest.raises(SlotLost):
        await bench.backend.read_file(gone, "/etc/passwd")
    with pytest.raises(SlotLost):
        await bench.backend.renew(gone)


async def test_releasing_under_a_command_loses_it_in_place(bench):
    slot = await bench.slot()
    running = asyncio.create_task(
        bench.backend.execute_batch([ExecutionRequest(slot, "touch begun; sleep 4242")])
    )
    while not (await bench.sh(slot, "test -e begun")).ok:
        await asyncio.sleep(0.02)
    await bench.backend.release(slot)
    [answer] = await running
    assert isinstance(answer, SlotLost)


async def test_a_terminated_sandbox_is_lost_in_place_and_replaced(bench):
    slot = await bench.slot()
    await bench.backend.terminate(slot.sandbox_id)
    [answer] = await bench.backend.execute_batch([ExecutionRequest(slot, "true")])
    assert isinstance(answer, SandboxError)
    await bench.backend.release(slot)
    again = await bench.slot()
    assert await bench.out(again, "echo alive") == "alive"
    assert again.sandbox_id != slot.sandbox_id


LITTER = (
    'mkdir -p a/b; echo s >a/b/secret; touch .hidden ~/x ~/.bashrc "$TMPDIR/x"; '
    "mkdir closed; touch closed/x; chmod 000 closed; chmod 500 a/b; ln -s / link; "
    "setsid sleep 4242 & sleep 4242 & true"
)
LOOK = 'find . ~ "$TMPDIR" -mindepth 1; ' + COUNT


@pytest.mark.parametrize("way", ["release", "renew"])
async def test_reset_leaves_nothing(make_bench, backend_name, way):
    bench = await make_bench(backend_name, slots=1)
    slot = await bench.slot()
    await bench.out(slot, LITTER)
    if way == "renew":
        again = await bench.backend.renew(slot)
        assert again.slot_id != slot.slot_id
        assert (again.trajectory_id, again.spec) == (slot.trajectory_id, slot.spec)
        assert isinstance(
            (await bench.backend.execute_batch([ExecutionRequest(slot, "true")]))[0], SlotLost
        )
    else:
        await bench.backend.release(slot)
        again = await bench.slot()
    assert await bench.out(again, LOOK) == "0"
    assert bench.backend.free_slots == 0


async def test_stopping_ends_every_slot_and_may_be_repeated(bench):
    slot = await bench.slot()
    await bench.out(slot, "sleep 4242 & true")
    await bench.backend.stop()
    await bench.backend.stop()
    [answer] = await bench.backend.execute_batch([ExecutionRequest(slot, "true")])
    assert isinstance(answer, SandboxError)
    assert await bench.backend.list_sandboxes({}) == []
    await bench.backend.start()
    assert bench.backend.free_slots == 2


# --- files ------------------------------------------------------------------------------


async def test_files_are_written_with_parents_and_read_back(bench):
    slot = await bench.slot()
    data = bytes(range(256)) * 5000
    path = f"{slot.workspace}/new dir/-x/'q\"/file"
    await bench.backend.write_file(slot, path, data)
    assert await bench.backend.read_file(slot, path) == data
    await bench.backend.write_file(slot, path, b"")
    assert await bench.backend.read_file(slot, path) == b""


async def test_replacing_a_file_keeps_its_mode(bench):
    slot = await bench.slot()
    await bench.out(slot, "echo old >tool; chmod 755 tool")
    await bench.backend.write_file(slot, f"{slot.workspace}/tool", b"new\n")
    assert await bench.out(slot, "find tool -printf '%m\\n'; cat tool") == "755\nnew"


@pytest.mark.parametrize("name", ["missing", "directory", "dangling", "fifo", "closed", "a\0b"])
async def test_what_cannot_be_read_is_not_found(make_bench, backend_name, name):
    bench = await make_bench(backend_name, slots=1)
    slot = await bench.slot()
    await bench.out(slot, "mkdir directory; ln -s nowhere dangling; mkfifo fifo")
    if await bench.out(slot, "id -u") != "0":  # Nothing is closed to root.
        await bench.out(slot, "touch closed; chmod 000 closed")
    with pytest.raises(FileNotFoundError):
        await bench.backend.read_file(slot, f"{slot.workspace}/{name}")


async def test_a_file_over_the_limit_is_refused(bench):
    slot = await bench.slot()
    await bench.out(slot, "head -c 1000 /dev/zero >big")
    path = f"{slot.workspace}/big"
    assert len(await bench.backend.read_file(slot, path, max_bytes=1000)) == 1000
    with pytest.raises(OSError, match="999 bytes") as error:
        await bench.backend.read_file(slot, path, max_bytes=999)
    assert error.value.errno == errno.EFBIG


async def test_a_link_is_read_with_the_slots_own_rights(bench):
    slot = await bench.slot()
    await bench.out(slot, "echo text >file; ln -s file link")
    assert await bench.backend.read_file(slot, f"{slot.workspace}/link") == b"text\n"


async def test_writing_where_the_slot_may_not_is_an_os_error(bench):
    slot = await bench.slot()
    await bench.out(slot, "touch file")
    for path in (f"{slot.workspace}", f"{slot.workspace}/file/below", "/proc/nope"):
        with pytest.raises(OSError, match=r".+"):
            await bench.backend.write_file(slot, path, b"x")


# --- isolation --------------------------------------------------------------------------


async def test_reset_also_empties_the_shared_temporary_places(make_bench, fenced):
    slot = await fenced.slot()
    await fenced.out(slot, "touch /tmp/x /var/tmp/x /dev/shm/x")
    again = await fenced.backend.renew(slot)
    assert await fenced.out(again, "find /tmp /var/tmp /dev/shm -mindepth 1") == ""


async def test_only_these_places_are_writable(fenced):
    slot = await fenced.slot()
    # /dev/stdin and the like are links into the command's own /proc entry.
    command = (
        "find / -xdev -path /proc -prune -o -writable ! -type l ! -type c -print 2>/dev/null; "
        "for d in $PWD ~ /tmp /var/tmp /dev/shm; do touch $d/x && echo $d; done"
    )
    home = await fenced.out(slot, "cd; pwd -P")
    places = (await fenced.out(slot, command)).splitlines()[-5:]
    assert places == [slot.workspace, home, "/tmp", "/var/tmp", "/dev/shm"]
    for place in ("/", "/usr", "/usr/bin", "/etc", "/opt", "/opt/python", "/dev", "/home", "/var"):
        assert not (await fenced.sh(slot, f"touch {place}/x")).ok, place


async def test_a_slot_cannot_see_or_signal_another(fenced):
    one, other = await fenced.slot(), await fenced.slot()
    await fenced.out(one, "echo secret >f; sleep 4242 & echo $! >/tmp/pid")
    pid = await fenced.out(one, "cat /tmp/pid")
    assert await fenced.out(other, "find . -mindepth 1") == ""
    for path in ("/tmp/pid", f"{one.workspace}/f", f"/proc/{pid}/environ", f"/proc/{pid}/cwd/f"):
        assert not (await fenced.sh(other, f"cat {path}")).ok, path
    if not fenced.candidate.shared_names:
        assert await fenced.out(other, "find /tmp -mindepth 1") == ""
        assert await fenced.out(other, COUNT) == "0"
    await fenced.sh(other, f"kill -9 {pid}; kill -9 -1; pkill -9 sleep")
    assert await fenced.out(one, COUNT) == "1"


async def test_commands_have_no_capabilities_and_cannot_gain_any(fenced):
    slot = await fenced.slot()
    status = await fenced.out(slot, "grep Cap /proc/self/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    for name in fields.keys() - {"CapBnd"}:
        assert int(fields[name], 16) == 0, name
    assert {"CapInh", "CapPrm", "CapEff"} <= fields.keys()
    no_new_privileges = "import ctypes; print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))"
    assert await fenced.out(slot, f"python3 -c '{no_new_privileges}'") == "1"
    assert not (await fenced.sh(slot, "mount -o remount,rw /usr || mount -t tmpfs x /tmp")).ok


async def test_the_workers_files_and_processes_are_out_of_sight(fenced, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    slot = await fenced.slot()
    hidden = [str(secret), str(Path(__file__)), "/etc/shadow", str(Path.home() / ".ssh")]
    if not fenced.candidate.own_image:
        hidden.append("/root")
    for path in hidden:
        assert not (await fenced.sh(slot, f"[ -e '{path}' ]")).ok, path
    # Of the sandbox, where names are shared: nobody else uses it in this test.
    pids = (await fenced.out(slot, "cd /proc && echo [0-9]*")).split()
    assert len(pids) < 10


async def test_the_hosts_python_packages_are_out_of_sight(fenced):
    if fenced.candidate.own_image:
        pytest.skip("the image is the user's")
    slot = await fenced.slot()
    found = await fenced.out(
        slot,
        "find / \\( -name site-packages -o -name dist-packages -o -name python-wheels \\) "
        "-not -path '/proc/*' 2>/dev/null | while read d; do ls -A \"$d\"; done",
    )
    assert found == ""


async def test_there_is_no_network(fenced):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        slot = await fenced.slot()
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
        assert not (await fenced.sh(slot, connect)).ok
    interfaces = await fenced.out(slot, "tail -n +3 /proc/net/dev | cut -d: -f1")
    assert interfaces.split() == ["lo"]


async def test_a_slot_outlives_whatever_its_commands_kill(fenced):
    slot = await fenced.slot()
    await fenced.sh(slot, "kill -9 1; kill -TERM 1; kill -STOP 1; kill -9 -1; true")
    assert await fenced.out(slot, "echo alive") == "alive"


# --- assets -----------------------------------------------------------------------------


async def test_an_asset_is_built_once_by_five_at_once(make_bench, isolated_name):
    benches = [await make_bench(isolated_name, slots=1) for _ in range(2)]
    spec = asset("sleep 0.3; date +%s%N >stamp")
    callers = [benches[n % 2].backend.prepare(SlotSpec(assets=(spec,))) for n in range(5)]
    await asyncio.gather(*callers)
    stamps = {await bench.backend.read_asset(spec, "stamp") for bench in benches}
    assert len(stamps) == 1


async def test_an_asset_is_mounted_read_only_and_only_where_asked_for(fenced):
    spec = asset("mkdir bin; echo text >bin/file")
    slot = await fenced.slot(SlotSpec(assets=(spec,)))
    assert await fenced.out(slot, f"cat {spec.mount}/bin/file") == "text"
    assert not (await fenced.sh(slot, f"echo x >{spec.mount}/bin/file")).ok
    assert not (await fenced.sh(slot, f"rm -rf {spec.mount}/bin")).ok
    other = await fenced.slot()
    assert await fenced.out(other, "find /opt/assets -mindepth 1") == ""
    renewed = await fenced.backend.renew(slot)
    assert await fenced.out(renewed, f"cat {spec.mount}/bin/file") == "text"


async def test_a_build_is_strict_and_starts_in_its_mount(fenced):
    spec = asset("pwd >where; command -v python3 >>where")
    await fenced.backend.prepare(SlotSpec(assets=(spec,)))
    where = (await fenced.backend.read_asset(spec, "where")).decode().splitlines()
    assert where[0] == spec.mount
    broken = asset("echo $UNSET_VARIABLE")
    with pytest.raises(EnvInfraError, match="UNSET_VARIABLE"):
        await fenced.backend.prepare(SlotSpec(assets=(broken,)))


async def test_a_failed_build_says_why_and_leaves_nothing(fenced):
    broken = asset("echo no such wheel >&2; touch half; exit 7")
    with pytest.raises(EnvInfraError, match=r"exit code 7(.|\n)*no such wheel"):
        await fenced.slot(SlotSpec(assets=(broken,)))
    assert fenced.backend.free_slots == 2
    mended = dataclasses.replace(broken, script="echo ok >file; ls -A")
    await fenced.backend.prepare(SlotSpec(assets=(mended,)))
    assert await fenced.backend.read_asset(mended, "file") == b"ok\n"
    with pytest.raises(FileNotFoundError):
        await fenced.backend.read_asset(mended, "half")


async def test_a_build_that_takes_too_long_is_ended(fenced):
    slow = asset("sleep 4242", timeout_s=0.5)
    with pytest.raises(EnvInfraError, match=r"out of time after 0\.5 s"):
        await fenced.backend.prepare(SlotSpec(assets=(slow,)))


async def test_reading_an_asset_follows_no_link(fenced):
    script = (
        "echo text >file; mkdir -p d/e; echo deep >d/e/f; ln -s /etc/passwd link; "
        "ln -s d dirlink; ln -s . self; mkfifo fifo; head -c 1000 /dev/zero >big"
    )
    spec = asset(script)
    assert await fenced.backend.read_asset(spec, "file") == b"text\n"
    assert await fenced.backend.read_asset(spec, "d/e/f") == b"deep\n"
    for path in (
        "link",
        "dirlink/e/f",
        "self/file",
        "fifo",
        "d",
        "nope",
        "../x",
        "/etc/passwd",
        "",
    ):
        with pytest.raises(FileNotFoundError):
            await fenced.backend.read_asset(spec, path)
    with pytest.raises(SandboxError, match="999 bytes"):
        await fenced.backend.read_asset(spec, "big", max_bytes=999)


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("kind", AssetSpec("../up", "00112233", "", "/opt/assets/x")),
        ("key", AssetSpec("venv", "../..", "", "/opt/assets/x")),
        ("mount", AssetSpec("venv", "00112233", "", "/opt/assets/../../usr")),
        ("mount", AssetSpec("venv", "00112233", "", "/usr/lib")),
    ],
)
async def test_a_malformed_asset_is_the_envs_fault(fenced, field, spec):
    with pytest.raises(EnvBug, match=f"asset {field}"):
        await fenced.backend.prepare(SlotSpec(assets=(spec,)))


async def test_a_python_that_is_not_to_be_had_names_the_fix(fenced):
    with pytest.raises(EnvInfraError, match="install"):
        await fenced.backend.prepare(SlotSpec(python="3.99"))


# --- dead workers -----------------------------------------------------------------------


async def test_a_profile_nobody_described_is_refused_with_those_there_are(bench):
    free = bench.backend.free_slots
    for lease in (bench.backend.prepare, lambda spec: bench.backend.acquire("t", spec)):
        with pytest.raises(SandboxRejected, match=r"'gpu' is unknown .*known: default") as caught:
            await lease(SlotSpec(profile="gpu"))
        assert caught.value.consequences.attempts is None
    assert bench.backend.free_slots == free


async def test_a_killed_workers_sandbox_is_listed_and_can_be_terminated(
    make_bench, backend_name, cache
):
    worker = f"victim-{os.getpid()}-{backend_name}"
    command = [sys.executable, Path(__file__).with_name("victim.py"), backend_name, cache, worker]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        # Started while the victim lives, so that it does not reclaim anything by itself.
        bench = await make_bench(backend_name, slots=1)
        sandbox_id = (await asyncio.to_thread(victim.stdout.readline)).strip()
        victim.kill()
    [listed] = await bench.backend.list_sandboxes({"worker": worker})
    assert listed.sandbox_id == sandbox_id
    assert {"deployment", "worker"} <= set(listed.labels)
    await bench.backend.terminate(sandbox_id)
    await bench.backend.terminate(sandbox_id)
    assert await bench.backend.list_sandboxes({"worker": worker}) == []
    slot = await bench.slot()
    assert await bench.out(slot, COUNT) == "0"
