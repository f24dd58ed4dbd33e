"""What those who look are told, and what that costs the Redis that is looked at."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from records import make_job
from redis_server import RedisServer
from view_server import VIEW_TOKEN, ViewServer

from hermes_plugins.view.answers import to_json
from hermes_plugins.view.live import LivePoller
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.cli.overview import overview
from hermes_queue.errors import RedisUnavailable
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.accounts.goodput import add_report

pytestmark = pytest.mark.xdist_group("view")
TICK_S = 0.01


class Deployment:
    """An overview that tests change, and how often it was read."""

    def __init__(self) -> None:
        self.now: dict[str, Any] = {"leased": 1, "delayed": 0}
        self.away = False
        self.reads = threading.Semaphore(0)
        self.count = 0

    def read(self) -> dict[str, Any]:
        self.count += 1
        self.reads.release()
        if self.away:
            raise RedisUnavailable("Redis cannot be reached")
        return dict(self.now)

    def wait(self, rounds: int = 2) -> None:
        """Until it was read again from beginning to end."""
        while self.reads.acquire(blocking=False):
            pass
        for _ in range(rounds):
            assert self.reads.acquire(timeout=20)


class Heard(Queue[tuple[str, Any]]):
    def tell(self, kind: str, data: bytes) -> None:
        self.put((kind, json.loads(data)))

    def next(self) -> tuple[str, Any]:
        return self.get(timeout=20)


def test_who_looks_gets_the_whole_and_then_what_changes():
    seen, heard = Deployment(), Heard()
    live = LivePoller(seen.read, every_s=TICK_S)
    with live.subscribe(heard.tell):
        assert heard.next() == ("overview", {"leased": 1, "delayed": 0})
        seen.wait()
        assert heard.empty()  # nothing has changed
        seen.now = {"leased": 2, "delayed": 0}
        assert heard.next() == ("change", {"leased": 2})


def test_who_comes_later_gets_the_same_whole_without_another_reading():
    seen, first, second = Deployment(), Heard(), Heard()
    live = LivePoller(seen.read, every_s=60)
    with live.subscribe(first.tell):
        first.next()
        with live.subscribe(second.tell):
            assert second.next() == ("overview", seen.now)
    for _ in range(20):  # nor does somebody who comes and goes have it read more often
        with live.subscribe(second.tell):
            assert second.next() == ("overview", seen.now)
    assert seen.count == 1


def test_twenty_who_look_cost_as_much_as_one():
    seen = Deployment()
    heard = [Heard() for _ in range(20)]
    live = LivePoller(seen.read, every_s=60)
    with ExitStack() as stack:
        for each in heard:
            stack.enter_context(live.subscribe(each.tell))
        assert [each.next()[0] for each in heard] == ["overview"] * 20
        assert (seen.count, live.watched) == (1, 20)


def test_nobody_looks_and_nothing_is_read():
    seen, heard = Deployment(), Heard()
    live = LivePoller(seen.read, every_s=TICK_S)
    with live.subscribe(heard.tell):
        heard.next()
    while live._thread is not None:
        time.sleep(TICK_S)
    count, seen.now = seen.count, {"leased": 3, "delayed": 0}
    while time.monotonic() < live._next:
        time.sleep(TICK_S)
    assert not any(each.name == "live" for each in threading.enumerate())
    with live.subscribe(heard.tell):  # and somebody who comes back sees how it is now
        assert heard.next() == ("overview", seen.now)
    assert seen.count > count


def test_a_lost_redis_is_told_once_and_its_return_with_the_whole():
    seen, heard, late = Deployment(), Heard(), Heard()
    live = LivePoller(seen.read, every_s=TICK_S)
    with live.subscribe(heard.tell):
        heard.next()
        seen.away = True
        kind, said = heard.next()
        assert (kind, sorted(said)) == ("gone", ["error", "hint"])
        assert "cannot be reached" in said["error"]
        with live.subscribe(late.tell):
            assert late.next()[0] == "gone"
            seen.wait()
            assert heard.empty()
            assert late.empty()
            seen.away = False
            assert heard.next() == late.next() == ("overview", seen.now)


def test_a_fault_of_ours_is_logged_once_and_does_not_end_the_thread(caplog):
    seen, heard = Deployment(), Heard()
    faults = [ValueError("a secret of the server")] * 3

    def read() -> dict[str, Any]:
        if faults:
            raise faults.pop()
        return seen.read()

    with LivePoller(read, every_s=TICK_S).subscribe(heard.tell):
        kind, said = heard.next()
        assert (kind, "secret" in said["error"]) == ("gone", False)
        assert heard.next() == ("overview", seen.now)
    assert caplog.text.count("ValueError: a secret of the server") == 1


def test_the_size_of_the_index_is_told_when_it_changes(index):
    seen, heard = Deployment(), Heard()
    with LivePoller(seen.read, index, every_s=TICK_S).subscribe(heard.tell):
        assert heard.next()[0] == "overview"
        kind, size = heard.next()
        assert (kind, size["upto"], size["count"]) == ("index", index.upto(), index.count())
        seen.wait()
        assert heard.empty()


# --- a real Redis --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deployment(redis_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    directory: Path = tmp_path_factory.mktemp("live")
    server = RedisServer(redis_binary, directory)
    try:
        server.start()
        with closing(server.client(decode_responses=False)) as client:
            yield Ledger(client, prefix="hq:", url=server.url)
    finally:
        server.close()


def commands(ledger: Ledger) -> int:
    """Commands that its server has run, this one aside."""
    client: Any = ledger.client
    stats = client.info("commandstats")
    return sum(each["calls"] for name, each in stats.items() if "info" not in name)


def shown(ledger: Ledger) -> dict[str, Any]:
    seen = overview(ledger)
    return {**asdict(seen), "oldest": seen.oldest}


def counted(seen: dict[str, Any]) -> dict[str, Any]:
    """What stays as it is from one reading to the next."""
    runs = [(each["info"]["run_id"], each["info"]["counters"]) for each in seen["runs"]]
    return {
        "waiting": [(lane["name"], lane["depth"]) for lane in seen["lanes"]],
        "run": [(name, counters["queued"], counters["running"]) for name, counters in runs],
        "leased": seen["leased"],
        "dead": seen["dead_letters"],
    }


def test_twenty_pages_ask_redis_for_as_much_as_one_top(server, deployment):
    enqueue([make_job("run", f"i{n}") for n in range(3)], ledger=deployment)
    before = commands(deployment)
    shown(deployment)
    one = commands(deployment) - before
    live = LivePoller(partial(shown, deployment), every_s=60)
    site = replace(server.site, ledger=deployment, live=live)
    with closing(ViewServer(site)) as served, ExitStack() as stack:
        before = commands(deployment)
        for _ in range(20):
            connection = stack.enter_context(closing(served.connect()))
            headers = {"Authorization": f"Bearer {VIEW_TOKEN}"}
            connection.request("GET", "/api/events", headers=headers)
            answer = stack.enter_context(connection.getresponse())
            said = [answer.readline().decode() for _ in range(5)]
            assert said[3] == "event: overview\n"
            seen = json.loads(said[4].removeprefix("data: "))
            assert counted(seen) == {
                "waiting": [("train", 3)], "run": [("run", 3, 0)], "leased": 0, "dead": 0,
            }  # fmt: skip
        assert commands(deployment) - before == one
    assert counted(seen) == counted(json.loads(to_json(shown(deployment))))


def test_a_run_shows_what_it_got_for_its_slot_time(server, deployment):
    enqueue([make_job("new", "i")], ledger=deployment)
    with closing(ViewServer(replace(server.site, ledger=deployment))) as served:
        assert served.get("/api/runs/new").json["goodput"] is None
        sums = {"s|model": 900, "s|verify": 300, "s|retry:model": 600, "c|scored": 2, "usd|m": 4}
        counts = [("new", name, by) for name, by in sums.items()]
        add_report(deployment, "w1", 1, counts=counts, moments=(), slow=())
        found = served.get("/api/runs/new").json["goodput"]
    assert (found["scored"], found["leased_s"], found["per_slot_hour"]) == (2, 1800, 4)
    assert (found["usd"], found["per_usd"]) == (4, 0.5)
    assert [(each["name"], each["seconds"], each["is_lost"]) for each in found["accounts"]] == [
        ("model", 900, False),
        ("retry:model", 600, True),
        ("verify", 300, False),
    ]
