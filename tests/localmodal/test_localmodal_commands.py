"""Commands in sandboxes, as the SDK runs them."""

from __future__ import annotations

import asyncio

import modal
import pytest


async def test_streams_and_exit_code_arrive_apart(sandbox, run):
    assert await run(sandbox, "bash", "-c", "echo out; echo err >&2; exit 7") == (
        "out\n",
        "err\n",
        7,
    )


async def test_arguments_arrive_as_they_are(sandbox, run):
    words = ["A=b", "", "a b", "$HOME", "--", "-n", "ü\n"]
    out, _, _ = await run(sandbox, "python3", "-c", "import sys; print(sys.argv[1:])", *words)
    assert out == f"{words}\n"


async def test_environment_comes_from_sandbox_secret_and_command(create, run):
    secret = modal.Secret.from_dict({"FROM_SECRET": "s"})
    sandbox = await create(env={"FROM_CREATE": "c"}, secrets=[secret])
    out, _, _ = await run(
        sandbox, "sh", "-c", "echo $FROM_CREATE $FROM_SECRET $FROM_EXEC", env={"FROM_EXEC": "e"}
    )
    assert out == "c s e\n"


async def test_nothing_of_the_hosts_environment_is_inside(sandbox, sh, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", "top")
    everywhere = "cat /proc/*/environ | tr '\\0' '\\n' | grep -c -e HOST_SECRET -e MODAL_TOKEN"
    assert await sh(sandbox, f"{everywhere} || true") == "0"


async def test_image_environment_and_workdir_are_kept(create, run):
    image = modal.Image.debian_slim().env({"MARK": "a b"}).workdir("/srv/work")
    out, _, _ = await run(await create(image=image), "sh", "-c", "pwd; echo $MARK")
    assert out == "/srv/work\na b\n"


async def test_workdir_is_made_for_the_sandbox_and_given_to_each_command(create, run):
    sandbox = await create(workdir="/workspace/deep")
    assert (await run(sandbox, "pwd"))[0] == "/workspace/deep\n"
    assert (await run(sandbox, "pwd", workdir="/tmp"))[0] == "/tmp\n"


async def test_standard_input_is_streamed_and_ends(sandbox):
    process = await sandbox.exec.aio("cat")
    process.stdin.write("one\n")
    await process.stdin.drain.aio()
    process.stdin.write(b"two\n")
    process.stdin.write_eof()
    await process.stdin.drain.aio()
    assert await process.stdout.read.aio() == "one\ntwo\n"
    assert await process.wait.aio() == 0


async def test_bytes_arrive_unchanged(sandbox, run):
    out, _, _ = await run(sandbox, "printf", r"a\377\000b", text=False)
    assert out == b"a\xff\0b"


async def test_five_megabytes_of_output_arrive_on_both_streams(sandbox, run):
    script = "head -c 5000000 /dev/zero; head -c 5000000 /dev/zero >&2"
    out, err, code = await run(sandbox, "bash", "-c", script, text=False)
    assert (len(out), len(err), code) == (5_000_000, 5_000_000, 0)


async def test_lines_come_one_by_one(sandbox):
    process = await sandbox.exec.aio("printf", r"1\n2\n3\n", bufsize=1)
    assert [line async for line in process.stdout] == ["1\n", "2\n", "3\n"]


async def test_a_command_out_of_time_is_killed_with_its_tree(sandbox, sh, run):
    script = 'echo begun; trap "" TERM; sh -c "sleep 4711 & wait" & sleep 4711'
    out, _, code = await run(sandbox, "bash", "-c", script, timeout=5)
    assert out == "begun\n"
    assert code in {-1, 137}
    await sh(sandbox, "while pgrep -f '[s]leep 4711'; do sleep 0.05; done", timeout=30)


async def test_without_slack_the_kill_can_win_over_the_sdk(localmodal, sandbox, run):
    localmodal.faults.adjust(kill_slack_s=-29.9)
    _, _, code = await run(sandbox, "sleep", "60", timeout=30)
    assert code == 137


async def test_death_by_a_signal_reads_as_128_and_its_number(sandbox, run):
    assert (await run(sandbox, "bash", "-c", "kill -9 $$"))[2] == 137


async def test_a_missing_program_ends_with_127(sandbox, run):
    _, err, code = await run(sandbox, "no-such-program")
    assert code == 127
    assert "not found" in err


async def test_a_background_process_outlives_its_command_without_holding_it(sandbox, run, sh):
    _, _, code = await run(sandbox, "sh", "-c", "sleep 4712 & echo started")
    assert code == 0
    assert await sh(sandbox, "pgrep -fc '[s]leep 4712'") == "1"


async def test_poll_says_nothing_while_a_command_runs(sandbox):
    process = await sandbox.exec.aio("sleep", "60")
    assert await process.poll.aio() is None


async def test_fifty_commands_at_once(sandbox, run):
    answers = await asyncio.gather(*(run(sandbox, "echo", str(n)) for n in range(50)))
    assert [out for out, _, _ in answers] == [f"{n}\n" for n in range(50)]


async def test_a_cancelled_wait_leaves_the_command_running(sandbox, sh):
    process = await sandbox.exec.aio("sleep", "4713")
    waiting = asyncio.create_task(process.wait.aio())
    await sh(sandbox, "until pgrep -f '[s]leep 4713'; do sleep 0.05; done")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await sh(sandbox, "pgrep -fc '[s]leep 4713'") == "1"
