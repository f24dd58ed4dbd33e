"""`make test-atropos`: nothing is lost between Redis and a trainer, whatever dies.

500 groups of 8 through the real Atropos API server, while the server, our sink and the trainer
are killed (SIGKILL) three times each, at moments drawn from SEED.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from killed_processes import SIZE, Processes, put, waiting
from ports import free_port

SUPPORT = Path(__file__).parents[1] / "support"
GROUPS, BATCH, TAIL, KILLS = 500, 32, 3, 3
SETTLE_S = "0.3"


class Cast(Processes):
    """Server, sink and trainer."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        port = str(free_port())
        url = f"http://127.0.0.1:{port}"
        self.popped, self.trained = folder / "popped.jsonl", folder / "trained.jsonl"
        self.popped.touch(), self.trained.touch()
        uvicorn = [sys.executable, "-m", "uvicorn", "atropos_logged:app", "--log-level", "warning"]
        main = "from hermes_queue.cli import main; main()"
        sink, trainer = ["sink", "atropos"], [sys.executable, str(SUPPORT / "atropos_trainer.py")]
        super().__init__(
            folder / "log",
            {
                "server": [*uvicorn, "--host", "127.0.0.1", "--port", port],
                "sink": [sys.executable, "-c", main, *sink, "--url", url, "--settle", SETTLE_S],
                "trainer": [*trainer, url, str(self.trained), "--batch-size", str(BATCH)],
            },
            {
                "HERMES_QUEUE_REDIS_URL": redis_url,
                "ATROPOS_BATCH_LOG": str(self.popped),
                "PYTHONPATH": str(SUPPORT),
            },
        )
        self.killed_trainers: set[str] = set()

    def kill(self, who: str) -> int:
        killed = super().kill(who)
        if who == "trainer":
            self.killed_trainers.add(str(killed))
        return killed


@pytest.fixture
def cast(tmp_path: Path, redis_server) -> Iterator[Cast]:
    made = Cast(tmp_path, redis_server.url)
    try:
        yield made
    finally:
        made.close()


def lines(path: Path) -> list[dict]:
    return [
        json.loads(line) for line in path.read_text().splitlines(keepends=True) if line[-1] == "\n"
    ]


def unacknowledged(ledger) -> int:
    [group] = ledger.client.xinfo_groups("hq:results")
    unread = ledger.client.xrange("hq:results", min=f"({group['last-delivered-id'].decode()}")
    return int(group["pending"]) + len(unread)


@pytest.mark.timeout(900)
def test_every_group_reaches_the_trainers_exactly_once_after_dedupe(cast: Cast, ledger):
    dice = random.Random(int(os.environ.get("SEED", "1")))
    wanted = {name for n in range(GROUPS) for name in put(ledger, f"g{n}")}
    for n in range(TAIL):  # repeats shift what is in which batch; these fill the last one
        put(ledger, f"tail{n}")
    for who in ("server", "trainer", "sink"):
        cast.start(who)
    began = time.monotonic()
    order = ["server", "sink", "trainer"] * KILLS
    dice.shuffle(order)
    batches = GROUPS * SIZE // BATCH
    for number, who in enumerate(order, start=1):
        with waiting(f"batch before kill {number}", cast) as more:
            while len(lines(cast.popped)) < number * batches // (len(order) + 1):
                more()
        time.sleep(dice.uniform(0.0, 1.0))
        cast.kill(who)
        cast.start(who)
    with waiting("the last batch", cast) as more:
        while unacknowledged(ledger) > TAIL or not lines(cast.trained):
            more()
    seconds = time.monotonic() - began
    time.sleep(1.0)  # the trainer writes down what it has after its step

    popped, trained = lines(cast.popped), lines(cast.trained)
    times = Counter(name for line in trained for name in line["ids"])
    missing = wanted - times.keys()
    written = {(line["trainer"], tuple(line["ids"])) for line in trained}
    excused = {
        name
        for line in popped
        if line["trainer"] in cast.killed_trainers
        and (line["trainer"], tuple(line["ids"])) not in written
        for name in line["ids"]
    }
    repeats = per_restart(cast.kills, trained)
    print(
        f"\n{GROUPS} groups of {SIZE} in {seconds:.0f} s ({GROUPS / seconds:.1f} groups/s at "
        f"--settle {SETTLE_S}), killed: {' '.join(who for _, who in cast.kills)}\n"
        f"missing {len(missing)}, of these popped for a trainer killed before it wrote them down "
        f"{len(missing & excused)}\nrepeats after each kill: {repeats}"
    )
    assert len(cast.kills) == 3 * KILLS
    assert missing <= excused
    assert max(repeats) <= BATCH
    assert ledger.client.xlen("hq:dead") == 0


def per_restart(kills: list[tuple[float, str]], trained: list[dict]) -> list[int]:
    """Trajectories that were given a second time, by the kill that came before."""
    seen: set[str] = set()
    found = [0] * (len(kills) + 1)
    for line in trained:
        number = sum(at <= line["at"] for at, _ in kills)
        found[number] += len(seen & set(line["ids"]))
        seen |= set(line["ids"])
    return found
