"""What Modal's failures become; injected into a Modal-compatible server, through the real SDK."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import time
from functools import partial

import pytest
from modal_slots import age, answer, out

from hermes_queue.errors import (
    SandboxError,
    SandboxRejected,
    SandboxUnavailable,
    SlotLost,
)
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.commands import deadline
from hermes_queue.sandbox.fleet import SandboxObserver
from hermes_queue.sandbox.modal import box, factory, process


@pytest.fixture
def faults(localmodal):
    return localmodal.faults


def logged(caplog):
    """Actions of the log so far."""
    return [getattr(record, "action", "") for record in caplog.records]


def break_creation(faults, **how):
    """In either version of the protocol; the SDK's default depends on its version."""
    for call in ("SandboxCreate", "SandboxCreateV2"):
        faults.inject(call, **how)


@pytest.fixture
def start(start_modal):
    """As `start_modal`, of two slots."""
    return partial(start_modal, slots=2)


# --- credentials ------------------------------------------------------------------------

START = """
import asyncio
from pathlib import Path
from hermes_queue.errors import ConfigurationError
from hermes_queue.sandbox.modal.backend import ModalBackend
try:
    asyncio.run(ModalBackend(slots=1, cache=Path("/nowhere")).start())
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.fleet
@pytest.mark.parametrize("token", [None, "wrong"])
def test_a_missing_or_wrong_token_is_named_at_start(localmodal, token, tmp_path):
    environment = {**os.environ, "MODAL_CONFIG_PATH": str(tmp_path / "none.toml")}
    if token is None:
        del environment["MODAL_TOKEN_ID"], environment["MODAL_TOKEN_SECRET"]
    else:
        environment["MODAL_TOKEN_SECRET"] = token
    done = subprocess.run(
        [sys.executable, "-c", START], env=environment, capture_output=True, text=True, check=True
    )
    assert "Modal refuses the token" in done.stdout, done.stderr
    assert "MODAL_TOKEN_ID" in done.stdout


# --- creation ---------------------------------------------------------------------------


async def test_an_image_that_is_not_there_is_refused(start):
    backend = await start(image="im-0123456789abcdefghijkl")
    with pytest.raises(SandboxRejected, match="im-0123456789abcdefghijkl"):
        await backend.acquire("t", SlotSpec())
    assert backend.free_slots == 2


BUILDS = {
    "TERMINATED": ("", SandboxError),
    "TIMEOUT": ("", SandboxError),
    "INTERNAL_FAILURE": ("", SandboxError),
    "MEMORY_MANAGER_EVICTION": ("the builder was evicted", SandboxError),
    "FAILURE": ("toomanyrequests: You have reached your pull rate limit", SandboxUnavailable),
}


@pytest.mark.fleet
async def test_a_build_that_fails_for_a_passing_reason_is_tried_again(start, faults):
    backend = await start(image=f"python:{secrets.token_hex(8)}")
    for result, (message, kind) in BUILDS.items():
        faults.inject("ImageJoinStreaming", result=result, message=message)
        with pytest.raises(kind) as caught:
            await backend.acquire("t", SlotSpec())
        assert caught.value.consequences.attempts, result
        assert backend.free_slots == 2
    slot = await backend.acquire("t", SlotSpec())
    assert await out(backend, slot, "echo alive") == "alive"


async def test_a_build_whose_commands_fail_is_refused(start, faults):
    backend = await start(image=f"python:{secrets.token_hex(8)}")
    faults.inject("ImageJoinStreaming", result="FAILURE", message="pip: exit code 1")
    with pytest.raises(SandboxRejected, match=r"exit code 1.*build log") as caught:
        await backend.acquire("t", SlotSpec())
    assert caught.value.consequences.attempts is None


@pytest.mark.fleet
@pytest.mark.parametrize("status", ["NOT_FOUND", "FAILED_PRECONDITION"])
async def test_an_app_that_was_stopped_is_looked_up_again(start, faults, localmodal, status):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    looked_up = faults.calls["AppGetOrCreate"]
    await backend.terminate(slot.sandbox_id)
    await backend.release(slot)
    break_creation(faults, status=status, message="the app is stopped")
    again = await backend.acquire("t", SlotSpec())
    assert await out(backend, again, "echo alive") == "alive"
    assert faults.calls["AppGetOrCreate"] == looked_up + 1


async def test_a_creation_that_stays_in_conflict_is_an_attempt_not_a_refusal(start, faults):
    break_creation(faults, status="FAILED_PRECONDITION", count=100)
    backend = await start()
    with pytest.raises(SandboxError) as caught:
        await backend.acquire("t", SlotSpec())
    assert caught.value.consequences.attempts


async def test_a_request_modal_does_not_take_is_not_repeated(start, faults):
    break_creation(faults, status="INVALID_ARGUMENT", message="no such GPU")
    backend = await start(gpu="T800")
    with pytest.raises(SandboxRejected, match="no such GPU") as caught:
        await backend.acquire("t", SlotSpec())
    assert caught.value.consequences.attempts is None


@pytest.mark.fleet
async def test_a_gpu_where_there_is_none_is_refused(start):
    backend = await start(profiles="big: {gpu: A10G, slots_per_sandbox: 1}")
    with pytest.raises(SandboxRejected, match=r"(?i)gpu") as caught:
        await backend.acquire("t", SlotSpec(profile="big"))
    assert caught.value.consequences.attempts is None
    slot = await backend.acquire("t", SlotSpec())
    assert await out(backend, slot, "echo alive") == "alive"


async def test_a_quota_is_waited_for_and_logged(start, faults, monkeypatch, caplog):
    monkeypatch.setattr(factory, "BACKOFF_S", 0.01)
    break_creation(faults, status="RESOURCE_EXHAUSTED", count=2)
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    assert await out(backend, slot, "echo alive") == "alive"
    assert logged(caplog).count("sandbox_throttled") == 2


async def test_a_quota_that_lasts_gives_the_job_back(start, faults):
    break_creation(faults, status="RESOURCE_EXHAUSTED", count=100)
    backend = await start(patience_s=0)
    with pytest.raises(SandboxUnavailable) as caught:
        await backend.acquire("t", SlotSpec())
    assert caught.value.retry_after_s > 0
    assert backend.free_slots == 2


async def test_a_sandbox_that_is_not_scheduled_gives_the_job_back_and_ends_when_it_comes(
    start, faults
):
    break_creation(faults, delay_s=1.5)
    backend = await start(start_timeout_s=0.5)
    with pytest.raises(SandboxUnavailable, match="started no sandbox") as caught:
        await backend.acquire("t", SlotSpec())
    assert caught.value.retry_after_s > 0
    assert backend.free_slots == 2
    await asyncio.sleep(1.5)
    async with asyncio.timeout(30):
        while await backend.list_sandboxes({}):
            await asyncio.sleep(0.1)


async def test_a_rate_limit_that_says_how_long_is_waited_for_by_the_sdk(start, faults, caplog):
    break_creation(faults, status="RESOURCE_EXHAUSTED", retry_after_s=0.1)
    backend = await start(patience_s=0)
    await backend.acquire("t", SlotSpec())
    assert "sandbox_throttled" not in logged(caplog)


async def test_a_service_that_is_away_for_a_moment_is_not_noticed(start, faults):
    break_creation(faults, status="UNAVAILABLE", count=2)
    faults.inject("TaskExecStart", status="UNAVAILABLE", count=2)
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    assert await out(backend, slot, "echo alive") == "alive"


async def test_a_service_that_stays_away_costs_one_attempt_and_no_slot(start, faults):
    break_creation(faults, status="UNAVAILABLE", count=100)
    backend = await start()
    with pytest.raises(SandboxError) as caught:
        await backend.acquire("t", SlotSpec())
    assert caught.value.consequences.attempts
    faults.clear()
    slot = await backend.acquire("t", SlotSpec())
    assert await out(backend, slot, "echo alive") == "alive"


async def test_a_sandbox_is_found_by_its_labels_before_it_is_recorded(start):
    creating, found = asyncio.Event(), []

    class Slow(SandboxObserver):
        async def created(self, sandbox_id, labels):
            found.append(sandbox_id)
            creating.set()
            await asyncio.sleep(600)

    backend = await start(observer=Slow())
    acquiring = asyncio.create_task(backend.acquire("t", SlotSpec()))
    await creating.wait()
    [listed] = await backend.list_sandboxes({"worker": backend.labels["worker"]})
    assert [listed.sandbox_id] == found
    assert listed.labels.items() >= backend.labels.items()
    assert 0 <= time.time() - listed.created < 60
    acquiring.cancel()
    await asyncio.gather(acquiring, return_exceptions=True)
    await backend.stop()
    assert await backend.list_sandboxes({"worker": backend.labels["worker"]}) == []


# --- under commands ---------------------------------------------------------------------


async def test_a_sandbox_that_ends_under_a_command_is_lost_in_place(start, localmodal):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    running = asyncio.create_task(answer(backend, slot, "touch begun; sleep 600"))
    while (await answer(backend, slot, "test -e begun")).exit_code:
        await asyncio.sleep(0.02)
    await backend.terminate(slot.sandbox_id)
    assert isinstance(await running, SlotLost)
    await backend.release(slot)
    again = await backend.acquire("t", SlotSpec())
    assert again.sandbox_id != slot.sandbox_id


@pytest.mark.fleet
async def test_a_sandbox_whose_machine_dies_under_a_command_is_a_failure_not_a_timeout(
    start, localmodal, monkeypatch
):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    running = asyncio.create_task(answer(backend, slot, "touch begun; sleep 600", timeout_s=10))
    while (await answer(backend, slot, "test -e begun")).exit_code:
        await asyncio.sleep(0.02)
    localmodal.lose_worker(slot.sandbox_id)
    monkeypatch.setattr(process, "START_S", 2.0)
    assert isinstance(await running, SandboxError)
    assert isinstance(await answer(backend, slot, "true"), SandboxError)
    await backend.release(slot)
    again = await backend.acquire("t", SlotSpec())
    assert again.sandbox_id != slot.sandbox_id


@pytest.mark.parametrize(
    ("call", "status"), [("TaskExecWait", "UNAVAILABLE"), ("TaskExecStart", "UNAUTHENTICATED")]
)
async def test_a_command_goes_on_when_the_service_is_away_or_a_token_expires(
    start, faults, call, status
):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    faults.inject(call, status=status)
    assert await out(backend, slot, "echo whole") == "whole"


async def test_a_lifetime_that_ends_under_a_command_is_a_lost_slot(start, localmodal):
    backend = await start(lifetime_s=1000, lease_s=1)
    slot = await backend.acquire("t", SlotSpec())
    running = asyncio.create_task(answer(backend, slot, "touch begun; sleep 600"))
    while (await answer(backend, slot, "test -e begun")).exit_code:
        await asyncio.sleep(0.02)
    age(localmodal, slot.sandbox_id, life_s=1000)
    assert isinstance(await running, SlotLost)


@pytest.mark.parametrize("status", ["NOT_FOUND", "FAILED_PRECONDITION"])
async def test_a_sandbox_that_is_gone_or_going_is_a_lost_slot(start, faults, status):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    faults.inject("TaskExecStart", status=status)
    assert isinstance(await answer(backend, slot, "true"), SlotLost)


@pytest.mark.fleet
async def test_a_command_that_cannot_be_killed_is_no_timeout(start, faults, monkeypatch):
    monkeypatch.setattr(deadline, "KILL_ROUNDS", 2)
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    faults.inject("TaskExecWait", delay_s=100)
    found = await answer(backend, slot, "sleep 600", timeout_s=0.5)
    assert isinstance(found, SandboxError)
    assert "could not be killed" in str(found)


async def test_output_survives_a_broken_stream(start, faults):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    faults.inject("TaskExecStdioRead", status="UNAVAILABLE", after_messages=1)
    text = await out(backend, slot, "seq 200000", max_output_bytes=1 << 22)
    assert text.split() == [str(n) for n in range(1, 200001)]


@pytest.mark.fleet
async def test_a_command_that_another_clock_ended_first_is_a_timeout_too(start, monkeypatch):
    for module in (process, box):
        monkeypatch.setattr(module, "BACKSTOP_S", 0)
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    # The event loop is busy while the clocks of the sandbox, the service and the SDK run out.
    asyncio.get_running_loop().call_later(0.5, time.sleep, 1.5)
    result = await answer(backend, slot, "echo begun; sleep 600", timeout_s=1)
    assert (result.exit_code, result.timed_out) == (124, True)


@pytest.mark.fleet
async def test_an_image_whose_probe_answers_late_holds_slots(start, faults, monkeypatch):
    monkeypatch.setattr(process, "QUIET_S", 0.05)
    backend = await start()
    faults.inject("TaskExecStdioRead", delay_s=1, count=2)
    slot = await backend.acquire("t", SlotSpec())
    assert await out(backend, slot, "echo alive") == "alive"


@pytest.mark.fleet
async def test_a_file_whose_bytes_come_late_is_whole(start, faults, monkeypatch):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    path = f"{slot.workspace}/file"
    await backend.write_file(slot, path, b"late")
    monkeypatch.setattr(process, "QUIET_S", 0.05)
    faults.inject("TaskExecStdioRead", delay_s=1, count=2)
    assert await backend.read_file(slot, path) == b"late"


@pytest.mark.fleet
async def test_output_that_comes_late_is_whole(start, faults, monkeypatch):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    monkeypatch.setattr(process, "QUIET_S", 0.05)
    faults.inject("TaskExecStdioRead", delay_s=1, count=2)
    result = await answer(backend, slot, "echo late; echo words >&2")
    assert (result.stdout, result.stderr, result.truncated) == (b"late\n", b"words\n", False)


async def test_output_that_does_not_come_in_time_is_marked_as_cut(start, faults, monkeypatch):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    monkeypatch.setattr(process, "DRAIN_S", 0.2)
    faults.inject("TaskExecStdioRead", delay_s=100, count=2)
    result = await answer(backend, slot, "echo never")
    assert result.truncated
    assert b"the rest did not arrive" in result.stdout
    assert b"never" not in result.stdout


def hold_streams_open(monkeypatch):
    """As a service does for a background process; the server here ends them with the command."""
    read = process.Output._read

    async def held(stream):
        async for chunk in stream:
            yield chunk
        await asyncio.Event().wait()

    monkeypatch.setattr(process.Output, "_read", lambda self, stream: read(self, held(stream)))


@pytest.mark.fleet
async def test_a_background_process_that_holds_the_streams_cuts_nothing(start, monkeypatch):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    with monkeypatch.context() as patch:
        hold_streams_open(patch)
        patch.setattr(process, "DRAIN_S", 5.0)
        result = await answer(backend, slot, "setsid sleep 600 & head -c 300000 /dev/zero")
    assert (len(result.stdout), result.stderr, result.truncated) == (300000, b"", False)


@pytest.mark.fleet
async def test_a_stream_whose_end_swallows_the_cancellation_holds_no_command_up(start, monkeypatch):
    """As the SDK's bridge does when a stream ends in the moment of the cancellation."""
    read = process.Output._read

    async def swallowing(stream):
        async for chunk in stream:
            yield chunk
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    monkeypatch.setattr(
        process.Output, "_read", lambda self, stream: read(self, swallowing(stream))
    )
    async with asyncio.timeout(30):
        result = await answer(backend, slot, "echo here")
    assert (result.stdout, result.truncated) == (b"here\n", False)


async def test_a_command_cannot_pretend_to_have_ended(start):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    forge = "printf '\\0%s\\0' $HQ_COMMAND_ID; cat /.hq/seal 2>/dev/null || echo unreadable"
    result = await answer(backend, slot, forge)
    assert result.stdout.endswith(b"\0unreadable\n") is (os.geteuid() == 0)
    assert not result.truncated


@pytest.mark.fleet
async def test_fifty_megabytes_of_output_are_capped(start):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    command = "echo first; head -c 50000000 /dev/zero; echo last"
    result = await answer(backend, slot, command, max_output_bytes=1000)
    assert result.truncated
    assert result.stdout.startswith(b"first\n")
    assert result.stdout.endswith(b"last\n")
    assert len(result.stdout) < 1100


@pytest.mark.fleet
async def test_a_file_name_may_hold_a_newline(start):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    path = f"{slot.workspace}/a\nb '$(x)'"
    await backend.write_file(slot, path, b"text")
    assert await backend.read_file(slot, path) == b"text"


# --- resets -----------------------------------------------------------------------------


async def test_a_slot_whose_reset_fails_takes_its_sandbox_out_of_service(start, faults):
    backend = await start(slots=2)
    slot, other = [await backend.acquire("t", SlotSpec()) for _ in range(2)]
    assert slot.sandbox_id == other.sandbox_id
    faults.inject("TaskExecStart", status="INVALID_ARGUMENT")
    await backend.release(slot)
    assert backend.free_slots == 1
    third = await backend.acquire("t", SlotSpec())
    assert third.sandbox_id != slot.sandbox_id
    assert await out(backend, other, "echo alive") == "alive"
    await backend.release(other)
    ids = {info.sandbox_id for info in await backend.list_sandboxes(backend.labels)}
    assert slot.sandbox_id not in ids
    assert third.sandbox_id in ids


async def test_a_renewal_that_fails_gives_the_lease_up(start, faults):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    faults.inject("TaskExecStart", status="INVALID_ARGUMENT")
    with pytest.raises(SandboxError):
        await backend.renew(slot)
    assert backend.free_slots == 2
    assert isinstance(await answer(backend, slot, "true"), SlotLost)
