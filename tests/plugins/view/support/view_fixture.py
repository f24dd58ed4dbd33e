"""The viewer's server over real records and a real Redis, and a deployment moved by hand."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from redis_server import RedisServer
from view_records import HOSTILE_RUN, HOSTILE_TEXTS, RUN
from view_server import OPERATE_TOKEN, VIEW_TOKEN, ViewServer

from hermes_plugins.view import present
from hermes_plugins.view.answers import Refusal
from hermes_plugins.view.app import Route
from hermes_plugins.view.assets import Assets
from hermes_plugins.view.index.index import Index
from hermes_plugins.view.site import Tell, ViewSite
from hermes_plugins.view.sources.jsonl import JsonlSource
from hermes_plugins.view.tokens import Keys
from hermes_queue.bodies.reviews import ReviewFile
from hermes_queue.cli.overview import Lane, Overview, RedisState, RunProgress, StreamState
from hermes_queue.ledger.answers import RunStatus
from hermes_queue.ledger.fleet.lanes import LaneState
from hermes_queue.ledger.fleet.tally import Lately
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.ledger.runs import RunInfo
from hermes_queue.results.consumers import ConsumerGroup

LETTER = {
    "cause": "poison",
    "reason": "killed 3 workers",
    "run_id": RUN,
    "group_id": f"{RUN}.x",
    "env": "swe_smith",
    "instance_id": "owner__repo-999",
    "trajectory_id": f"{RUN}.x.1",
    "stage": "agent",
    "attempts": "3",
    "died": "1763900000.5 trainer-1 agent\n1763900100.5 trainer-2 agent",
    "log": "Traceback (most recent call last):\n  MemoryError\n<script>window.ran = 1</script>",
}
"""Fields of a dead letter."""


def overview(now: float) -> dict[str, Any]:
    """What `status --json` prints of a deployment that works."""
    counters = RunStatus(total=260, queued=10, running=152, finished=96, failed=2, groups=12)
    info = RunInfo(RUN, "active", "", "", now - 3600, {}, 0, {}, 12, None, counters)
    oldest = {
        "age_s": 66.0,
        "stage": "agent",
        "turns": 2,
        "attempt": 1,
        "label": f"{RUN} owner__repo-401 #0",
        "trajectory_id": f"{RUN}.1.0",
    }
    worker = {
        "name": "trainer-1",
        "owner": "w1",
        "slots": 100,
        "running": 100,
        "sandboxes": 98,
        "silent_s": 1.2,
        "intake": "open",
        "stages": {"agent": 98, "setup": 2},
        "oldest": [oldest],
    }
    late = {
        "name": "trainer-2",
        "owner": "w2",
        "slots": 100,
        "running": 52,
        "sandboxes": 50,
        "silent_s": 41.0,
        "intake": "draining",
        "stages": {"agent": 50, "verify": 2},
        "oldest": [],
    }
    seen = Overview(
        at=now,
        redis=RedisState("7.0.15", 2_400_000, 0, "noeviction", True, 12),
        lanes=(
            Lane("train", 78, 3, 84.0, 152, 2, LaneState("train")),
            Lane(
                "eval",
                12,
                0,
                300.0,
                0,
                1,
                LaneState("eval", "open", "sandbox", "the quota is used up", now - 60, now + 60),
            ),
            Lane(
                "heldout",
                0,
                0,
                None,
                0,
                1,
                LaneState("heldout"),
                [LaneState("heldout", "open", "model", "it answers 503", endpoint="m at http://a")],
            ),
        ),
        delayed=4,
        leased=152,
        workers=(worker, late),
        sandboxes=148,
        starting=2,
        runs=(RunProgress(info, 1946.0, 390.0),),
        lately=Lately(3600.0, {"": 445, "sandbox": 7, "model": 3}, {RUN: 96}),
        dead_letters=2,
        stream=StreamState(48, 1_200_000, (ConsumerGroup("trainer", True, {}, 1, 2, 0, 0.5),)),
    )
    return {**asdict(seen), "oldest": seen.oldest}


class Deployment:
    """What the poller would tell, moved by hand."""

    def __init__(self) -> None:
        self.seen = overview(time.time())
        self._tellers: list[Tell] = []

    @contextmanager
    def subscribe(self, tell: Tell) -> Iterator[None]:
        """Tell of changes until the block ends."""
        self._tellers.append(tell)
        tell("overview", self.seen)
        try:
            yield
        finally:
            self._tellers.remove(tell)

    @property
    def watched(self) -> int:
        """How many look."""
        return len(self._tellers)

    def tell(self, kind: str, data: Any) -> None:
        """Tell everybody who looks."""
        for tell in list(self._tellers):
            tell(kind, data)


RUNNING = f"{RUN}.running.0"
HOSTILE_RUNNING = f"{HOSTILE_RUN}.running.0"
LONG = "It is long. " * 1000


class RunningTranscript:
    """What the worker of one trajectory would answer, moved by hand."""

    def __init__(self) -> None:
        self.texts = ["The bug: `parse` returns None.", "I look at it. <b>bold</b>"]
        self.state = "running"

    def after(self, name: str, start: int) -> dict[str, Any]:
        """Its messages from number `start` on."""
        said = self._said(name)
        shown: list[Any] = list(present.messages({"messages": said}, start))
        source = "worker" if self.state == "running" else ""
        note = "" if name == RUNNING else HOSTILE_TEXTS[0]
        where = {"state": self.state, "source": source, "stage": "agent", "attempt": 1}
        where["note"] = note
        ends = {"next": start + len(shown), "total": len(said)}
        return {**where, "worker": "trainer-1", "messages": shown, **ends}

    def whole(self, name: str, number: int) -> Any:
        """One of its messages, all of it."""
        return present.message({"messages": self._said(name)}, number)

    def _said(self, name: str) -> list[dict[str, str]]:
        texts = {RUNNING: self.texts, HOSTILE_RUNNING: [*HOSTILE_TEXTS, LONG]}.get(name)
        if texts is None:
            raise Refusal(404, "Redis does not know this trajectory")
        roles = ("user", "assistant")
        return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


class ViewedPages:
    """All of it, started; to be closed."""

    def __init__(
        self,
        records: Path,
        directory: Path,
        redis_binary: str,
        routes: Iterable[Route] = (),
        **more: Any,
    ) -> None:
        self.records = records
        self._redis = RedisServer(redis_binary, directory / "redis")
        self._redis.start()
        self._client = self._redis.client(decode_responses=False)
        for cause in ("poison", "env_bug"):
            letter: Any = {**LETTER, "cause": cause}
            self._client.xadd("hq:dead", letter)
        self.index = Index(directory / "index", [JsonlSource(records)])
        self.index.refresh()
        self.deployment = Deployment()
        self.reviews = ReviewFile(directory / "reviews.jsonl")
        self.running: Any = RunningTranscript()
        self.ledger = Ledger(self._client, prefix="hq:", url=self._redis.url)
        site = ViewSite(
            keys=Keys({"view": VIEW_TOKEN, "operate": OPERATE_TOKEN}),
            cookie="hq_view",
            deployment="hq:",
            version="0.0.0",
            assets=Assets(),
            index=self.index,
            sources=[{"kind": "jsonl", "name": records.name}],
            ledger=self.ledger,
            overview=lambda: self.deployment.seen,
            live=self.deployment,
            transcripts=self.running,
            actions=True,
            reviews=self.reviews,
            **more,
        )
        self.server = ViewServer(site, routes)

    @property
    def address(self) -> str:
        return f"http://{self.server.authority}"

    def bury(self, letter: Any) -> str:
        """Write a dead letter; returns its id."""
        return str(self._client.xadd("hq:dead", letter).decode())

    def exhume(self, name: str) -> None:
        """Delete a dead letter."""
        self._client.xdel("hq:dead", name)

    def close(self) -> None:
        self.server.close()
        self.index.close()
        self._client.close()
        self._redis.close()
