"""Environments of waiting jobs are prepared while all slots are busy, and nothing depends on it."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from records import make_job
from slot_bench import local_backend
from sums_env import SumsEnv

from hermes_queue.bodies import codec
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.errors import EnvInfraError
from hermes_queue.ledger import Ledger
from hermes_queue.sandbox.base import AssetSpec, Capabilities, SlotSpec
from hermes_queue.sandbox.local.backend import LocalBackend
from hermes_queue.settings import WorkerSettings
from workers.runtime import Runtime
from workers.spool import Spool
from workers.upkeep.ahead import AheadPreparation

ENV_NAME = f"{__name__}:ENV"


class BuildsEnv(SumsEnv):
    """Its rows say what their environments are built with."""

    name: ClassVar[str] = "builds"

    def spec(self, item, profile):
        if item.question == "exit":
            sys.exit(3)
        key = hashlib.sha256(item.question.encode()).hexdigest()
        asset = AssetSpec("text", key, item.question, "/opt/assets/t")
        return SlotSpec(profile=profile, assets=(asset,))

    async def prepare_ahead(self, item, read_asset):
        fetched.append(item.instance_id)


ENV = BuildsEnv()
fetched: list[str] = []


class Recording:
    """A backend that notes what it is asked to build."""

    capabilities = Capabilities(isolation=True)

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def prepare(self, spec: SlotSpec) -> None:
        self.asked += [asset.script for asset in spec.assets]
        if "fail" in self.asked:
            raise EnvInfraError("it does not build")


class Bench:
    """A worker of one slot, which may be busy, and the tasks that prepare for it."""

    def __init__(self, ledger: Ledger, backend: Any, spool: Path, owner: str = "me") -> None:
        self.ledger = ledger
        self.busy = True
        worker = WorkerSettings(prepare_ahead=1)
        self.runtime = Runtime(
            owner=owner,
            ledger=ledger,
            backend=cast(Any, backend),
            spool=Spool(spool, "d", owner),
            worker=worker,
        )
        self.ahead = AheadPreparation(
            self.runtime, lanes=lambda: ("train",), is_full=lambda: self.busy
        )

    def add(self, *questions: str, env: str = ENV_NAME, run_id: str = "run", **more: Any) -> None:
        """Enqueue a job for each question; the first is the next to be taken."""
        rows = [
            {"instance_id": f"i{n}", "question": q, "answer": 0} for n, q in enumerate(questions)
        ]
        jobs = [make_job(run_id, row["instance_id"], env=env, item=row, **more) for row in rows]
        enqueue(jobs, ledger=self.ledger)

    async def steps(self, count: int) -> list[bool]:
        return [await self.ahead._step() for _ in range(count)]


@pytest.fixture
async def bench(ledger: Ledger, tmp_path: Path) -> AsyncIterator[Bench]:
    fetched.clear()
    made = Bench(ledger, Recording(), tmp_path)
    yield made
    await made.ahead.stop()
    made.runtime.executor.shutdown()


def built(bench: Bench) -> list[str]:
    return cast(Recording, bench.runtime.backend).asked


def messages(ledger: Ledger) -> list[bytes]:
    found: Any = ledger.client.lrange("hq:v1.train\x06\x163", 0, -1)
    assert isinstance(found, list)
    return found


async def test_the_next_jobs_are_prepared_for_in_their_order_and_stay_in_their_queue(bench):
    bench.add("a", "b", "c")
    before = messages(bench.ledger)
    assert len(before) == 3
    assert await bench.steps(4) == [True, True, True, False]
    assert built(bench) == ["a", "b", "c"]
    assert fetched == ["i0", "i1", "i2"]
    assert messages(bench.ledger) == before


async def test_nothing_is_looked_at_while_a_slot_is_free(bench):
    bench.add("a")
    bench.busy = False
    commands: Any = bench.ledger.client.info("stats")["total_commands_processed"]
    assert await bench.steps(3) == [False] * 3
    after: Any = bench.ledger.client.info("stats")["total_commands_processed"]
    assert (built(bench), after - commands) == ([], 1)


async def test_a_job_is_looked_at_once(bench):
    bench.add("a", "b")
    await bench.steps(3)
    commands: Any = bench.ledger.client.info("stats")["total_commands_processed"]
    await bench.steps(1)
    after: Any = bench.ledger.client.info("stats")["total_commands_processed"]
    assert after - commands == 1 + 4  # this call, and a look at each level of the tree


async def test_an_item_is_prepared_for_once_in_the_fleet(bench, ledger, tmp_path):
    other = Bench(ledger, Recording(), tmp_path / "other", owner="you")
    bench.add("a")
    bench.add("a", run_id="again")
    assert await bench.steps(2) == [True, False]
    assert await other.steps(2) == [False, False]
    assert (built(bench), built(other)) == (["a"], [])
    other.runtime.executor.shutdown()


async def test_what_fails_harms_neither_the_worker_nor_the_job(bench):
    bench.add("exit", "fail", "b")
    before = messages(bench.ledger)
    assert await bench.steps(3) == [False, False, False]
    assert built(bench) == ["fail", "b"]
    assert messages(bench.ledger) == before
    assert {*bench.ledger.client.hgetall(f"hq:traj:{make_job(instance='i1').trajectory_id}")} >= {
        b"state",
        b"job",
    }


async def test_suspects_and_poison_are_left_to_the_worker_that_runs_them(bench):
    bench.add("a", "b")
    suspect = make_job(instance="i0").trajectory_id
    bench.ledger.client.hset(f"hq:traj:{suspect}", "deaths", 1)
    row = {"instance_id": "i1", "question": "b", "answer": 0}
    bench.ledger.client.hset("hq:poison", codec.item_sha256(row), "{}")
    assert await bench.steps(1) == [False]
    assert built(bench) == []


async def test_only_envs_that_a_job_has_loaded_are_used(bench, monkeypatch):
    bench.add("a", env="exits_when_imported:ENV")
    assert await bench.steps(1) == [False]
    assert "exits_when_imported" not in sys.modules
    bench.add("a", run_id="known")
    assert await bench.steps(1) == [True]


async def test_an_env_without_assets_costs_one_claim(bench):
    bench.add("a", "b", "c", env="sums_env:ENV")
    assert await bench.steps(3) == [False] * 3
    assert len(bench.ledger.client.keys("hq:ahead:*")) == 1


async def test_foreign_messages_are_passed_over(bench):
    bench.ledger.client.lpush("hq:v1.train\x06\x163", b"{}", b"\xff")
    bench.add("a")
    assert await bench.steps(1) == [True]


async def test_slots_without_isolation_keep_their_assets(bench):
    bench.add("a")
    cast(Any, bench.runtime.backend).capabilities = Capabilities(isolation=False)
    assert await bench.steps(1) == [False]


async def test_the_end_of_a_worker_ends_what_it_builds(ledger, tmp_path):
    async with local_backend() as backend:
        bench = Bench(ledger, backend, tmp_path)
        bench.add("touch begun; sleep 3600")
        bench.ahead.start()
        root = backend._cache / "assets"
        async with asyncio.timeout(30):
            while not [*root.glob(".text-*/begun")]:
                await asyncio.sleep(0.02)
        await bench.ahead.stop()
        assert isinstance(backend, LocalBackend)
        assert backend._slots == {}
        assert [*root.glob(".text-*")] == []
        bench.runtime.executor.shutdown()


async def test_zero_prepares_nothing(bench):
    bench.runtime.worker = WorkerSettings(prepare_ahead=0)
    bench.add("a")
    bench.ahead.start()
    assert bench.ahead._tasks == []
