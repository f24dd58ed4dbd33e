"""A worker tells the ledger for which waiting jobs its host is ready."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from records import make_job
from sums_env import SumsEnv

from envs.base import needs_of
from hermes_queue.broker.pool import RunningTask, running
from hermes_queue.broker.pool.intake import INTAKE
from hermes_queue.ledger import Ledger
from hermes_queue.sandbox.base import AssetSpec, Capabilities, Slot, SlotSpec
from workers import runtime as runtimes
from workers.intake.ready import REMEMBERED, ReadyNeeds
from workers.runtime import Runtime
from workers.spool import Spool
from workers.trajectory import run_trajectory


class AssetEnv(SumsEnv):
    """The question names the asset that a slot is made with."""

    def spec(self, item: Any, profile: str) -> SlotSpec:
        key = hashlib.sha256(item.question.encode()).hexdigest()
        return SlotSpec(profile=profile, assets=(AssetSpec("text", key, "", "/opt/assets/t"),))

    async def setup(self, item: Any, context: Any) -> None: ...

    async def verify(self, item: Any, context: Any) -> Any:
        raise RuntimeError("not graded here")


ENV = AssetEnv()
ENV_NAME = f"{__name__}:ENV"
LEAF = f"hq:sched:jobs:train||run|{ENV_NAME}"


class Slots:
    """A backend whose slots cost nothing."""

    def __init__(self, *, remote: bool) -> None:
        self.capabilities = Capabilities(isolation=True, remote=remote)

    async def prepare(self, spec: SlotSpec) -> None: ...

    async def acquire(self, trajectory_id: str, spec: SlotSpec) -> Slot:
        return Slot(trajectory_id, trajectory_id, "none", "/workspace", spec)

    async def release(self, slot: Slot) -> None: ...


@pytest.fixture
def runtime(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    monkeypatch.setattr(type(INTAKE), "open_lanes", property(lambda _: ("train",)))
    made = Runtime(
        owner="me",
        ledger=ledger,
        backend=cast(Any, Slots(remote=False)),
        spool=Spool(tmp_path, "d", "me"),
    )
    runtimes.install(made)
    yield made
    runtimes.install(None)
    made.executor.shutdown()


def item(number: int, question: str) -> Any:
    row = {"instance_id": f"i{number}", "question": question, "answer": 0}
    return ENV.Item.model_validate(row)


def send(ledger: Ledger, *questions: str) -> None:
    for number, question in enumerate(questions):
        row = item(number, question)
        job = make_job(
            instance=f"i{number}",
            env=ENV_NAME,
            item=row.model_dump(mode="json"),
            agent={"kind": "nop"},
            needs=needs_of(ENV, row, "default"),
        )
        ledger.enqueue("run", [job], config={})


async def instances_of(count: int, ledger: Ledger) -> list[str]:
    """In the order in which the worker takes them, one after the other."""
    found = []
    with ThreadPoolExecutor(1) as callbacks:
        for _ in range(count):
            before = set(ledger.client.zrange(LEAF, 0, -1))
            running._current.set(RunningTask("id", None, callbacks))
            await run_trajectory.run("gone.x.0", 1)
            after = set(ledger.client.zrange(LEAF, 0, -1))
            [name] = before - after
            found.append(ledger.client.hget(f"hq:group:{name.decode()[:-2]}", "instance_id"))
    return [name.decode() for name in found]


async def test_a_host_prefers_groups_that_need_what_it_has(
    ledger: Ledger, runtime: Runtime
) -> None:
    send(ledger, "x", "y", "x", "y", "x")
    assert await instances_of(5, ledger) == ["i0", "i2", "i4", "i1", "i3"]


async def test_sandboxes_elsewhere_are_made_ready_by_nobody_here(
    ledger: Ledger, runtime: Runtime
) -> None:
    runtime.backend = cast(Any, Slots(remote=True))
    send(ledger, "x", "y", "x")
    assert await instances_of(3, ledger) == ["i0", "i1", "i2"]


def test_the_latest_needs_are_remembered() -> None:
    ready = ReadyNeeds()
    assert ready.text == ""
    names = [f"{number:08x}" for number in range(REMEMBERED + 1)]
    for name in names[:-1]:
        ready.note(name)
    ready.note(names[0])
    ready.note(names[-1])
    assert f" {names[0]} " in ready.text
    assert f" {names[1]} " not in ready.text
    assert len(ready.text.split()) == REMEMBERED


@pytest.mark.parametrize("junk", ["", "x" * 10**6, "aaaa aaa", "AAAAAAAA", "aaaaaaaa\n"])
def test_what_is_no_name_of_needs_is_not_remembered(junk: str) -> None:
    ready = ReadyNeeds()
    ready.note(junk)
    assert ready.text == ""


def test_items_with_the_same_assets_have_the_same_needs() -> None:
    x, again, y = (needs_of(ENV, item(n, question), "default") for n, question in enumerate("xxy"))
    assert x == again != y
    assert len(x) == len(y) == 8


def test_items_of_slots_without_image_and_assets_have_no_needs() -> None:
    assert needs_of(SumsEnv(), item(0, "x"), "default") == ""


@pytest.mark.parametrize("error", [ValueError("wrong"), SystemExit(3), RecursionError()])
def test_an_env_that_cannot_tell_its_slot_yet_stops_no_producer(error: BaseException) -> None:
    class Broken(SumsEnv):
        def spec(self, item: Any, profile: str) -> SlotSpec:
            raise error

    assert needs_of(Broken(), item(0, "x"), "default") == ""
