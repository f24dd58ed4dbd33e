"""How the unmodified SDK reacts to what the server is told to do wrong."""

from __future__ import annotations

import asyncio

import modal
import pytest


@pytest.fixture
def create_rpc(protocol: str) -> str:
    return "SandboxCreate" if protocol == "0" else "SandboxCreateV2"


async def test_throttled_creation_waits_as_told(localmodal, create, create_rpc):
    before = localmodal.faults.calls[create_rpc]
    localmodal.faults.inject(create_rpc, status="RESOURCE_EXHAUSTED", retry_after_s=0.1, count=2)
    await create()
    assert localmodal.faults.calls[create_rpc] - before == 3


async def test_creation_without_a_retry_policy_fails_at_once(localmodal, create, create_rpc):
    before = localmodal.faults.calls[create_rpc]
    localmodal.faults.inject(create_rpc, status="RESOURCE_EXHAUSTED", message="quota")
    with pytest.raises(modal.exception.ResourceExhaustedError, match="quota"):
        await create()
    assert localmodal.faults.calls[create_rpc] - before == 1


async def test_a_creation_rate_is_kept_by_waiting(localmodal, create, create_rpc):
    before = localmodal.faults.calls[create_rpc]
    localmodal.faults.adjust(creates_per_s=1, create_burst=1)
    await asyncio.gather(*(create() for _ in range(4)))
    assert len(localmodal.running()) == 4
    assert localmodal.faults.calls[create_rpc] - before > 4


async def test_an_outage_of_creation_is_retried_three_times(localmodal, create, create_rpc):
    before = localmodal.faults.calls[create_rpc]
    localmodal.faults.inject(create_rpc, status="UNAVAILABLE", count=99)
    with pytest.raises(modal.exception.ServiceError):
        await create()
    assert localmodal.faults.calls[create_rpc] - before == 4
    assert localmodal.running() == []


@pytest.mark.parametrize("status", ["UNAVAILABLE", "INTERNAL", "UNKNOWN"])
async def test_a_blip_of_creation_makes_one_sandbox(localmodal, create, create_rpc, status):
    localmodal.faults.inject(create_rpc, status=status)
    sandbox = await create()
    assert localmodal.running() == [sandbox.object_id]


@pytest.mark.parametrize("status", ["UNAVAILABLE", "UNAUTHENTICATED"])
async def test_a_blip_of_a_commands_start_is_not_seen(localmodal, sandbox, run, status):
    localmodal.faults.inject("TaskExecStart", status=status)
    assert (await run(sandbox, "echo", "hi"))[0] == "hi\n"


async def test_a_throttled_command_waits_or_is_refused_by_older_sdks(localmodal, sandbox, run):
    before = localmodal.faults.calls["TaskExecStart"]
    localmodal.faults.inject("TaskExecStart", status="RESOURCE_EXHAUSTED", retry_after_s=0.1)
    waits = tuple(map(int, modal.__version__.split(".")[:2])) >= (1, 6)
    if waits:
        assert (await run(sandbox, "echo", "hi"))[0] == "hi\n"
    else:
        with pytest.raises(modal.exception.ResourceExhaustedError):
            await run(sandbox, "echo", "hi")
    assert localmodal.faults.calls["TaskExecStart"] - before == 1 + waits


async def test_broken_output_goes_on_where_it_broke(localmodal, sandbox, run):
    localmodal.faults.inject("TaskExecStdioRead", status="UNAVAILABLE", after_messages=1, count=4)
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 8000)"
    out, _, code = await run(sandbox, "python3", "-c", script, text=False)
    assert out == bytes(range(256)) * 8000
    assert code == 0


async def test_an_outage_of_waiting_is_waited_out(localmodal, sandbox, run):
    localmodal.faults.inject("TaskExecWait", status="UNAVAILABLE")
    assert await run(sandbox, "sh", "-c", "exit 4") == ("", "", 4)


async def test_a_sandbox_that_is_gone_ends_the_wait(localmodal, sandbox):
    localmodal.faults.inject("TaskExecWait", status="NOT_FOUND")
    process = await sandbox.exec.aio("echo", "hi")
    with pytest.raises(modal.exception.NotFoundError):
        await process.wait.aio()
    assert await process.stdout.read.aio() == "hi\n"


async def test_a_late_answer_is_waited_for(localmodal, sandbox, run):
    localmodal.faults.inject("TaskExecStart", delay_s=0.3)
    assert (await run(sandbox, "echo", "hi"))[0] == "hi\n"


async def test_the_end_of_a_sandbox_can_show_late(localmodal, sandbox):
    localmodal.faults.adjust(result_lag_s=1000)
    await sandbox.terminate.aio()
    assert await sandbox.poll.aio() is None
    localmodal.faults.adjust(result_lag_s=0)
    assert await sandbox.poll.aio() == 137


@pytest.mark.fleet
async def test_a_lost_worker_is_noticed_by_commands_only(localmodal, app, create, run):
    lost, other = await create(), await create()
    await run(lost, "true")
    localmodal.lose_worker(lost.object_id)
    with pytest.raises((ConnectionError, modal.exception.ConnectionError)):
        await run(lost, "true")
    assert await lost.poll.aio() is None
    listed = {s.object_id async for s in modal.Sandbox.list.aio(app_id=app.app_id)}
    assert lost.object_id in listed
    assert (await run(other, "echo", "hi"))[0] == "hi\n"
    await lost.terminate.aio()
    assert localmodal.running() == [other.object_id]


async def test_a_command_with_a_timeout_outlives_its_lost_worker(localmodal, sandbox):
    process = await sandbox.exec.aio("sleep", "60", timeout=2)
    localmodal.lose_worker(sandbox.object_id)
    assert await process.wait.aio() == -1


async def test_a_command_without_a_timeout_waits_for_its_lost_worker(localmodal, sandbox):
    process = await sandbox.exec.aio("sleep", "60")
    localmodal.lose_worker(sandbox.object_id)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.wait.aio(), 2)


async def test_faults_end_after_their_count_and_can_be_cleared(localmodal, sandbox):
    localmodal.faults.inject("SandboxTagsGet", status="NOT_FOUND", count=1)
    localmodal.faults.inject("SandboxTagsGetV2", status="NOT_FOUND", count=1)
    with pytest.raises(modal.exception.NotFoundError):
        await sandbox.get_tags.aio()
    assert await sandbox.get_tags.aio() == {}
    localmodal.faults.inject("SandboxTagsGet", status="NOT_FOUND", count=9)
    localmodal.faults.inject("SandboxTagsGetV2", status="NOT_FOUND", count=9)
    localmodal.faults.clear()
    assert await sandbox.get_tags.aio() == {}


def test_unknown_conduct_is_refused(localmodal):
    with pytest.raises(ValueError, match="kill_slack_s"):
        localmodal.faults.adjust(kill_slag_s=1)
