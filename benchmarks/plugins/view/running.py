"""A run of 200 trajectories with three viewers open, beside the same without any.

redis-server with AOF, one worker with 32 local slots, gsm8k rows with the agent `openai`: six
calls of a scripted endpoint that answers after 0.3 to 1 s, five commands in the slot between
them. A consumer reads and acknowledges all groups. `three viewers`: `hermes-queue view`, and three
windows of a real Chromium in front of it, with the fleet, the run, and the transcript of what runs,
another one every four seconds. The first 40 trajectories are not counted, since starting is not.

Counted is the CPU time of worker and Redis; that of the viewer's server and of Chromium stands
beside it. Both take it from the same processors, which a browser on another machine does not.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.capped_endpoint import CappedEndpoint
from benchmarks.jobs import ROW, RUN, jobs
from benchmarks.measuring import Cases, Part, Side, Turn, metered
from benchmarks.parts.loops import script
from benchmarks.plugins.view.ours import Viewer, viewer
from benchmarks.plugins.view.pages import Browser, browser, missing
from benchmarks.processes import Server, redis_server, worker
from hermes_queue import consume
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import AgentSpec

COUNT, GROUP_SIZE, AT_ONCE = 200, 4, 32
STARTED = 40
"""Trajectories that are final before it is counted."""
REPLY_S = (0.3, 1.0)
ANOTHER_S = 4.0
PATIENCE_S = 600.0


class Audience:
    """Three windows of one Chromium, and a thread that keeps the third at what runs."""

    def __init__(self, page: Browser, viewer: Viewer) -> None:
        self._page, self._viewer = page, viewer
        self._stop = threading.Event()
        self.transcripts = 0
        """Running transcripts that were opened."""
        self.hidden = 0
        for number, path in enumerate(("/", f"/run/{RUN}", "/all")):
            if number:
                page.driver.switch_to.new_window("window")
            page.driver.get(viewer.origin + path)
            self.hidden += bool(page.run("return document.hidden;"))
        self._thread = threading.Thread(target=self._walk, daemon=True)

    def _walk(self) -> None:
        while not self._stop.is_set():
            with suppress(Exception):
                chosen = random.choice(self._viewer.api("/api/overview")["oldest"])["trajectory_id"]
                self._page.driver.get(f"{self._viewer.origin}/t/{chosen}")
                self.transcripts += 1
            self._stop.wait(ANOTHER_S)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look while the block runs."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()


def turn(count: int, *, viewers: bool) -> Turn:
    """One run."""
    with redis_server() as server, tempfile.TemporaryDirectory(prefix="hq-bench-") as directory:
        Path(directory).chmod(0o755)
        return asyncio.run(_turn(count, server, Path(directory), viewers))


async def _turn(count: int, server: Server, directory: Path, viewers: bool) -> Turn:
    with ExitStack() as stack:
        ledger = stack.enter_context(closing(Ledger.connect(url=server.url)))
        async with CappedEndpoint(10 * count, REPLY_S, script=script) as endpoint:
            given = {
                "HERMES_QUEUE_SANDBOX_BACKEND": "local",
                "HERMES_QUEUE_MODEL_BASE_URL": endpoint.url,
                "HERMES_QUEUE_LIMITER_START_CALLS": str(2 * AT_ONCE),
                "HERMES_QUEUE_LIMITER_MAX_CALLS": str(2 * AT_ONCE),
            }
            agent = AgentSpec(kind="openai", model="scripted", params={"probe_tools": False})
            made = list(jobs(count, group_size=GROUP_SIZE, env="gsm8k", item=ROW, agent=agent))
            await asyncio.to_thread(enqueue, made, ledger=ledger)
            audience = await asyncio.to_thread(_audience, stack, server, directory, viewers)
            running = stack.enter_context(worker(server, given, concurrency=AT_ONCE))
            read = asyncio.create_task(_read(server.url, count))
            await _finished(ledger, min(STARTED, count // 2), running)
            done = ledger.run_status(RUN).finished
            pids = {"worker": running.pid, "redis": server.pid, **audience.pids}
            with metered(**pids) as meter:
                await _finished(ledger, count, running)
            found = await asyncio.wait_for(read, 60)
        counted = ledger.run_status(RUN)
    wanted = {job.trajectory_id for job in made}
    wrong = len(found) - len(set(found)) + len(wanted ^ set(found))
    assert (counted.finished, counted.failed, wrong) == (count, 0, 0), (counted, wrong)
    facts = {"ids_read": len(found), "ids_wrong": wrong, **audience.facts()}
    return meter.turn(count - done, of=("worker", "redis"), facts=facts)


async def _finished(ledger: Ledger, count: int, running: Any) -> None:
    """Wait until so many are final."""
    give_up = time.monotonic() + PATIENCE_S
    while ledger.run_status(RUN).finished < count:
        if running.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"only {ledger.run_status(RUN)} of {count}")
        await asyncio.sleep(0.1)


async def _read(url: str, count: int) -> list[str]:
    """Consume and acknowledge all groups; ids as they came, a second time too."""
    found: list[str] = []
    async for delivered in consume("bench", url=url):
        found += [each.trajectory_id for each in (*delivered.members, *delivered.extras)]
        await delivered.ack()
        if len(found) >= count:
            return found
    raise AssertionError("the stream has ended")


@dataclass(frozen=True)
class Watched:
    """Who looks."""

    audience: Audience | None = None
    pids: Mapping[str, int] = field(default_factory=dict)

    def facts(self) -> dict[str, float]:
        """What was looked at."""
        if self.audience is None:
            return {}
        opened, hidden = self.audience.transcripts, self.audience.hidden
        return {"transcripts_opened": opened, "windows_hidden": hidden}


def _audience(stack: ExitStack, server: Server, directory: Path, viewers: bool) -> Watched:
    if not viewers:
        return Watched()
    served = stack.enter_context(viewer(server, directory))
    page = stack.enter_context(browser(served.place()))
    audience = Audience(page, served)
    stack.enter_context(audience.looking())
    return Watched(audience, {"view": served.pid, "chromium": page.pid})


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """One case."""
    count = max(20, int(COUNT * scale) // GROUP_SIZE * GROUP_SIZE)
    looked: Side | str = missing() or partial(turn, count, viewers=True)
    yield {
        f"{count} trajectories": {
            "no viewer": partial(turn, count, viewers=False),
            "ours, three viewers": looked,
        }
    }


PART = Part("trajectory", cases)
