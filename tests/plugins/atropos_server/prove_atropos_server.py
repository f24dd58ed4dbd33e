"""`make test-atropos`: every group is once in the weights of a trainer, whatever dies.

500 groups of 8 through `hermes-queue atropos-server`, to a trainer that goes on from its
checkpoints, while the server, the trainer and Redis are killed (SIGKILL) three times each, at
moments drawn from SEED.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from atropos_resuming_trainer import newest
from killed_processes import SIZE, Processes, put, waiting
from ports import free_port

SUPPORT = Path(__file__).parent / "support"
GROUPS, BATCH, KILLS = 500, 32, 3
STEPS = GROUPS * SIZE // BATCH


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


@pytest.fixture
def processes(tmp_path: Path, folder: Path, redis_server, request) -> Iterator[Processes]:
    ack, save_every = request.param
    url = f"http://127.0.0.1:{(port := free_port())}"
    flags = ["--run", "run", "--group-size", str(SIZE), "--directory", str(folder)]
    flags += ["--port", str(port), "--min-std", "0", "--in-doubt", "refuse", "--ack", ack]
    if ack == "file":
        flags += ["--checkpoint", str(folder / "step_{step}.json")]
    main = "from hermes_queue.cli import main; main()"
    trainer = [sys.executable, str(SUPPORT / "atropos_resuming_trainer.py")]
    made = Processes(
        tmp_path / "log",
        {
            "server": [sys.executable, "-c", main, "atropos-server", *flags],
            "trainer": [*trainer, url, str(folder), str(save_every)],
        },
        {"HERMES_QUEUE_REDIS_URL": redis_server.url, "PYTHONPATH": str(SUPPORT)},
    )
    try:
        yield made
    finally:
        made.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("processes", [("next", 1), ("file", 5)], indirect=True, ids=str)
def test_every_group_is_once_in_the_weights_of_a_trainer_that_resumes(
    processes: Processes, folder: Path, ledger, redis_server
):
    dice = random.Random(int(os.environ.get("SEED", "1")))
    wanted = {name for n in range(GROUPS) for name in put(ledger, f"g{n}")}
    for who in ("server", "trainer"):
        processes.start(who)
    began = time.monotonic()
    order = ["server", "redis", "trainer"] * KILLS
    dice.shuffle(order)
    for number, who in enumerate(order, start=1):
        with waiting(f"step before kill {number}", processes) as more:
            while newest(folder)["step"] < number * STEPS // (len(order) + 1):
                more()
        time.sleep(dice.uniform(0.0, 1.0))
        if who == "redis":
            redis_server.kill9()
            time.sleep(dice.uniform(0.0, 1.0))
            redis_server.start()
        else:
            processes.kill(who)
            processes.start(who)
    with waiting("the last checkpoint", processes) as more:
        while newest(folder)["step"] < STEPS:
            more()
    with waiting("the last acknowledgement", processes, timeout_s=60) as more:
        while ledger.client.xinfo_groups("hq:results")[0]["pending"]:
            more()
    seconds = time.monotonic() - began
    ids = newest(folder)["ids"]
    missing, repeats = len(wanted - set(ids)), len(ids) - len(set(ids))
    print(
        f"\n{GROUPS} groups of {SIZE} in {seconds:.0f} s, killed: {' '.join(order)}\n"
        f"missing {missing}, repeats {repeats} in the weights"
    )
    assert (missing, repeats) == (0, 0)
    assert ledger.client.xlen("hq:dead") == 0
    journal = (folder / "hermes_queue.journal").read_text().splitlines()
    assert [json.loads(line)["step"] for line in journal] == [*range(1, STEPS + 1)]
