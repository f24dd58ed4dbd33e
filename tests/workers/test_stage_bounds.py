"""Every stage of a trajectory ends: what stalls in it is a failure with its cause, and no score."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from records import make_job
from redis_server import RedisServer
from slot_bench import local_backend
from sums_env import SumsEnv

from envs.base import Verdict
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.errors import DeadlineExceeded, SandboxError, TrajectoryFailure
from hermes_queue.ledger import Claim, Ledger
from hermes_queue.models import AgentSpec
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.local.backend import LocalBackend
from hermes_queue.settings import ModelSettings
from workers.attempt import Attempt, Services
from workers.bounds.limits import NO_LIMITS, StageLimits
from workers.bounds.overdue import Overdue
from workers.draft import Draft
from workers.outbox import Outbox
from workers.record import record_of
from workers.rollout import rollout
from workers.runtime import AttemptProgress, Runtime
from workers.spool import Spool
from workers.verdicts import checked_verdict

ROW = {"instance_id": "i", "question": "1+1", "answer": 2}


class StallingEnv(SumsEnv):
    """Stalls in one stage; in the others it is done at once."""

    tools: ClassVar[tuple[str, ...]] = ("terminal",)

    def __init__(self, stage: str = "") -> None:
        self._stage = stage

    async def load(self, row: Any) -> Any:
        if self._stage == "load":
            await asyncio.Event().wait()
        return self.Item.model_validate(row)

    async def setup(self, item: Any, context: Any) -> None:
        if self._stage == "setup":
            await context.run("sleep 3600", timeout_s=3600.0)

    async def verify(self, item: Any, context: Any, transcript: Any) -> Verdict:
        if self._stage == "verify":
            await context.run("sleep 3600", timeout_s=3600.0)
        return Verdict(1.0)


LOAD, SETUP, VERIFY, NONE = map(StallingEnv, ("load", "setup", "verify", ""))


def new_draft(env: str, agent: dict[str, Any] | None = None, **limits: float) -> Draft:
    fields = {"env": f"{__name__}:{env}", "agent": agent or {"kind": "nop"}, "limits": limits}
    draft = Draft(make_job(**fields), attempt=1, epoch=1)
    draft.clock.total_s = 600.0
    return draft


async def rolled_out(
    draft: Draft,
    backend: LocalBackend,
    bounds: StageLimits,
    model: ModelSettings = ModelSettings(),  # noqa: B008 - frozen
) -> TrajectoryFailure | None:
    async def measured() -> None:
        pass

    services = Services(backend, model, bounds=bounds)
    try:
        await rollout(Attempt(draft=draft, row=ROW, services=services, on_measured=measured))
    except TrajectoryFailure as failure:
        return failure
    return None


async def attempted(
    backend: LocalBackend,
    env: str,
    *,
    bounds: StageLimits = NO_LIMITS,
    agent: dict[str, Any] | None = None,
    model: ModelSettings = ModelSettings(),  # noqa: B008 - frozen
    **limits: float,
) -> tuple[Draft, TrajectoryFailure | None]:
    """One attempt on a real local slot, and its failure."""
    draft = new_draft(env, agent, **limits)
    return draft, await rolled_out(draft, backend, bounds, model)


def score_of(draft: Draft, failure: TrajectoryFailure | None) -> float | None:
    return record_of(draft, owner="w", host="h", failure=failure).score


@pytest.mark.parametrize(
    ("env", "stage", "bounds", "limits"),
    [
        ("LOAD", "load", StageLimits(load_s=0.1), {}),
        ("SETUP", "setup", StageLimits(), {"setup_timeout_s": 0.2}),
        ("VERIFY", "verify", StageLimits(), {"verify_timeout_s": 0.2}),
    ],
    ids=["load", "setup", "verify"],
)
async def test_a_stage_that_stalls_is_a_deadline_and_its_slot_is_free_again(
    env: str, stage: str, bounds: StageLimits, limits: dict[str, float]
) -> None:
    async with local_backend() as backend:
        draft, failure = await attempted(backend, env, bounds=bounds, **limits)
        assert backend.free_slots == 1
    assert isinstance(failure, DeadlineExceeded)
    assert (failure.stage, score_of(draft, failure)) == (stage, None)


async def test_a_model_that_never_answers_is_a_deadline_of_the_agent_and_no_score(
    monkeypatch,
) -> None:
    monkeypatch.setattr("workers.rollout.AGENT_GRACE_S", 0.2)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    agent, model = {"kind": "openai", "model": "m"}, ModelSettings(base_url=url, max_retries=0)
    async with local_backend() as backend, server:
        draft, failure = await attempted(
            backend, "NONE", agent=agent, model=model, agent_timeout_s=0.5
        )
        assert backend.free_slots == 1
    await close_clients()
    assert failure is not None
    assert (failure.stage, failure.cause) == ("agent", "deadline")
    assert score_of(draft, failure) is None


async def test_a_slot_that_never_comes_is_a_failure_of_the_sandbox() -> None:
    async with local_backend() as backend:
        other = await backend.acquire("other", SlotSpec())
        draft, failure = await attempted(backend, "NONE", bounds=StageLimits(acquire_s=0.2))
        await backend.release(other)
        assert backend.free_slots == 1, "the call that was given up holds none"
    assert isinstance(failure, SandboxError)
    assert (failure.stage, failure.cause, score_of(draft, failure)) == ("acquire", "sandbox", None)


class Hanging(LocalBackend):
    """A real backend that finishes neither leasing nor releasing before it is let go."""

    def __init__(self, *, hangs: str, **options: Any) -> None:
        super().__init__(**options)
        self.hangs, self.go_on, self.released = hangs, asyncio.Event(), 0

    async def acquire(self, trajectory_id: str, spec: SlotSpec) -> Any:
        if self.hangs == "acquire":
            while not self.go_on.is_set():  # as a provider's client that is deaf to cancellations
                with suppress(asyncio.CancelledError):
                    await self.go_on.wait()
        return await super().acquire(trajectory_id, spec)

    async def release(self, slot: Any) -> None:
        if self.hangs == "release":
            await self.go_on.wait()
        await super().release(slot)
        if self.hangs == "never, but raises":
            raise OSError("the provider has answered nonsense")
        self.released += 1


@asynccontextmanager
async def hanging(call: str) -> AsyncIterator[Hanging]:
    async with local_backend(Hanging, hangs=call) as backend:
        try:
            yield backend
        finally:
            backend.go_on.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_backend_that_is_deaf_to_the_end_of_its_time_is_overdue() -> None:
    async with hanging("acquire") as backend:
        draft = new_draft("NONE")
        attempt = asyncio.ensure_future(rolled_out(draft, backend, StageLimits(acquire_s=0.1)))
        await until(lambda: draft.clock.overdue_s > 0.1)
        assert not attempt.done()
        backend.go_on.set()
        assert await attempt is None, "it had no place to be cancelled at"
        assert backend.free_slots == 1


async def test_a_slot_that_is_never_reset_keeps_no_score_from_being_published() -> None:
    async with hanging("release") as backend:
        draft, failure = await attempted(backend, "NONE", bounds=StageLimits(release_s=0.1))
        assert (failure, score_of(draft, failure)) == (None, 1.0)
        assert backend.free_slots == 0, "nobody gets the slot before it has been reset"
        backend.go_on.set()
        await until(lambda: backend.free_slots == 1)


@pytest.mark.parametrize("release_s", [None, 60.0])
async def test_a_release_that_raises_stands_for_no_other_end(release_s: float | None) -> None:
    bounds = StageLimits(release_s=release_s)
    async with hanging("never, but raises") as backend:
        draft, failure = await attempted(backend, "NONE", bounds=bounds)
        assert (failure, score_of(draft, failure)) == (None, 1.0)
        _, failure = await attempted(backend, "SETUP", bounds=bounds, setup_timeout_s=0.2)
    assert isinstance(failure, DeadlineExceeded), "not a bug of the env, which is not tried again"


async def test_a_slot_that_is_never_reset_makes_no_score_of_a_failure() -> None:
    bounds = StageLimits(release_s=0.1)
    async with hanging("release") as backend:
        draft, failure = await attempted(backend, "VERIFY", bounds=bounds, verify_timeout_s=0.2)
    assert isinstance(failure, DeadlineExceeded)
    assert (failure.stage, score_of(draft, failure)) == ("verify", None)


async def test_a_redis_that_stands_still_delays_a_record_and_changes_nothing_in_it(
    redis_server: RedisServer, tmp_path: Path, caplog
) -> None:
    ledger = Ledger.connect(url=redis_server.url, timeout_s=0.2)
    job = make_job()
    ledger.enqueue("run", [job], config={})
    ledger.published([job.trajectory_id])
    begun = ledger.begin(job.trajectory_id, 1, owner="w", lease_s=60, nonce="n")
    runtime = Runtime("w", ledger, cast(Any, None), Spool(tmp_path, "d", "w"))
    draft = Draft.of(job, begun)
    draft.verdict, draft.agent.stop_reason = Verdict(0.25), "submitted"
    outbox = Outbox(runtime, Claim(job.trajectory_id, begun.epoch))
    await outbox.keep(draft)
    os.kill(redis_server.process.pid, signal.SIGSTOP)
    try:
        publishing = asyncio.ensure_future(outbox.publish())
        await until(lambda: "waiting for Redis" in caplog.text)
        assert not publishing.done()
    finally:
        os.kill(redis_server.process.pid, signal.SIGCONT)
    assert await publishing == "submitted 0.25 (group)"
    assert len(ledger.client.xrange("hq:results")) == 1
    ledger.close()


# --- code that swallows cancellations ---------------------------------------------------------


def test_an_attempt_that_outlasts_its_deadline_is_found_once_and_stays_known(caplog) -> None:
    claims = [Claim("run.a.0", 1), Claim("run.b.0", 1)]
    late, fine = (AttemptProgress("setup", 0.0, overdue_s=s) for s in (61.0, 59.0))
    overdue = Overdue(60.0)
    assert overdue.find(dict(zip(claims, (late, fine), strict=True))) == ({claims[0]}, [claims[0]])
    again = AttemptProgress("publish", 0.0)
    assert overdue.find({claims[0]: again}) == ({claims[0]}, [])
    assert overdue.find({}) == (frozenset(), [])
    assert "setup goes on 61 s after its deadline" in caplog.text


async def test_a_wait_that_counts_towards_no_deadline_is_not_overdue() -> None:
    draft = Draft(make_job(agent=AgentSpec(kind="nop")), attempt=1, epoch=1)
    clock = draft.clock
    over = asyncio.Event()
    seen = []

    async def wait() -> None:
        await asyncio.sleep(0.05)
        seen.append(clock.overdue_s)
        over.set()

    async with clock.stage("agent", limit_s=0.01):
        await clock.not_counting(wait)()
    assert seen == [0.0]


@pytest.mark.parametrize("trainable", [True, False])
def test_a_verdict_that_teaches_nothing_marks_its_record(trainable: bool) -> None:
    draft = new_draft("gsm8k")
    draft.verdict = Verdict(0.0, trainable=trainable)
    assert record_of(draft, owner="w", host="h").evaluation is not trainable
    assert checked_verdict(draft.verdict, cast(Any, None)).trainable is trainable
