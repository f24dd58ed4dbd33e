"""Agents in one process, their grading in another: whatever is killed, each is graded once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deadly_backend import AT
from modal_server import localmodal, localmodal_server
from records import make_job
from steps_env import played
from worker_process import WorkerProcess, wait_until

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.settings import PathSettings

__all__ = ["localmodal", "localmodal_server"]

SUPPORT = str(Path(__file__).parents[1] / "support")
TURNS = 3
RUN = f"graded-elsewhere-{os.getpid()}"
"""Others may run at the same time, whose copies are in the same directory."""
Start = Callable[..., WorkerProcess]


def settings(point: str = "", armed: Path | None = None) -> dict[str, Any]:
    return {
        "HERMES_QUEUE_SANDBOX_BACKEND": "deadly_backend:backend",
        "PYTHONPATH": os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH")])),
        AT: f"{point} {armed}" if armed else "",
    }


@pytest.fixture(autouse=True)
def _no_copies_are_left() -> Iterator[None]:
    """A killed worker's copy would be there for a week: no later deployment looks for it."""
    yield
    kept = Path(PathSettings().cache, "snapshots")
    for path in kept.glob("*.json"):
        if f'"{RUN}.' in path.read_text():
            path.with_suffix(".tar").unlink(missing_ok=True)
            path.unlink()


def facts_of(ledger, worker: WorkerProcess) -> dict[str, Any]:
    [found] = [w for w in ledger.workers() if w["pid"] == worker.process.pid]
    return found


def graders_are_there(ledger) -> None:
    wait_until("graders", lambda: ledger.client.exists("hq:graders:train"))


@pytest.mark.parametrize(
    ("stages", "point"),
    [
        ("agent", "snapshot"),
        pytest.param("agent", "release", marks=pytest.mark.fleet),
        pytest.param("verify", "restore", marks=pytest.mark.fleet),
        ("verify", "release"),
    ],
    ids=["copied", "handed-over", "restored", "measured"],
)
def test_a_worker_that_is_killed_at_any_point_of_the_hand_over_loses_nothing(
    factory, start_worker: Start, ledger, tmp_path: Path, stages: str, point: str
) -> None:
    armed = tmp_path / "armed"
    armed.touch()
    graders = start_worker(
        arguments=["--stages", "verify"], **settings(point if stages == "verify" else "", armed)
    )
    graders_are_there(ledger)
    agents = start_worker(
        arguments=["--stages", "agent"], **settings(point if stages == "agent" else "", armed)
    )
    job = make_job(RUN, env="steps_env:ENV", item={"turns": TURNS}, agent=played(TURNS))
    enqueue([job], ledger=ledger)
    killed = agents if stages == "agent" else graders
    wait_until("the kill", lambda: not killed.alive)
    start_worker(arguments=["--stages", stages], **settings())
    [record] = factory.wait_done(RUN)
    assert (record.score, record.attempt) == (1.0, 1)
    assert [each["event"] for each in record.events].count("handed_over") == 1
    assert record.report["found"] == ["begin", *map(str, range(TURNS))]
    assert not ledger.client.exists(f"hq:handover:{record.trajectory_id}", "hq:handed")


@pytest.mark.exhaustive
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may map a range of uids everywhere")
def test_on_modal_a_grader_of_another_host_gets_the_files(
    factory, start_worker: Start, ledger, localmodal, tmp_path: Path
) -> None:
    remote = {**settings(), "HERMES_QUEUE_SANDBOX_BACKEND": "modal"}
    for stages in ("verify", "agent"):
        start_worker(
            arguments=["--stages", stages],
            HERMES_QUEUE_PATHS_CACHE=str(tmp_path / stages),
            **remote,
        )
    graders_are_there(ledger)
    job = make_job(RUN, env="steps_env:ENV", item={"turns": TURNS}, agent=played(TURNS))
    enqueue([job], ledger=ledger)
    [record] = factory.wait_done(RUN)
    assert record.score == 1.0
    assert [each["event"] for each in record.events].count("handed_over") == 1
    images = localmodal._background.server.store.images
    wait_until("the end of its copy", lambda: not [n for n, i in list(images.items()) if i.files])


@pytest.mark.fleet
def test_a_grader_that_is_shut_down_hands_the_grading_back(
    factory, start_worker: Start, ledger, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    graders = start_worker(
        arguments=["--stages", "verify"],
        HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S="0",
        **settings(),
    )
    graders_are_there(ledger)
    start_worker(arguments=["--stages", "agent"], **settings())
    job = make_job(
        RUN,
        env="gated_steps_env:ENV",
        item={"turns": TURNS, "gate": str(gate)},
        agent=played(TURNS),
    )
    enqueue([job], ledger=ledger)
    key = f"hq:traj:{job.trajectory_id}"
    wait_until("its grading", lambda: ledger.client.hget(key, "stage") == b"verify")
    assert graders.terminate() == 0
    assert ledger.client.hget(key, "lane") == b"train.verify"
    gate.touch()
    start_worker(arguments=["--stages", "verify"], **settings())
    [record] = factory.wait_done(RUN)
    assert (record.score, record.attempt, record.attempts) == (1.0, 1, ())


@pytest.mark.fleet
def test_while_graders_are_missing_agents_workers_take_what_waits_for_them(
    factory, start_worker: Start, ledger, tmp_path: Path
) -> None:
    armed = tmp_path / "armed"
    armed.touch()
    graders = start_worker(arguments=["--stages", "verify"], **settings("restore", armed))
    graders_are_there(ledger)
    agents = start_worker(arguments=["--stages", "agent"], **settings())

    def run(instance: str) -> Any:
        job = make_job(
            RUN, instance, env="steps_env:ENV", item={"turns": TURNS}, agent=played(TURNS)
        )
        enqueue([job], ledger=ledger)
        return job

    first = run("first")
    wait_until("the kill", lambda: not graders.alive)
    [record] = factory.wait_done(RUN)
    assert (record.score, record.attempt, record.attempts) == (1.0, 1, ())
    agents.wait_for_log("has had no graders")
    both = ["train.verify", "train"]
    wait_until("a beat", lambda: facts_of(ledger, agents)["lanes"] == both)
    assert record.provenance.worker == facts_of(ledger, agents)["owner"]
    again = start_worker(arguments=["--stages", "verify"], **settings())
    agents.wait_for_log("has graders again")
    wait_until("the end of it", lambda: facts_of(ledger, agents)["lanes"] == ["train"])
    second = run("second")
    records = {each.trajectory_id: each for each in factory.wait_done(RUN)}
    assert set(records) == {first.trajectory_id, second.trajectory_id}
    assert records[second.trajectory_id].provenance.worker == facts_of(ledger, again)["owner"]
