"""The viewer's server over real records, with the routes that its own table does not have yet."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.responses import Response, StreamingResponse
from view_records import RUN
from view_server import OPERATE_TOKEN, VIEW_TOKEN, ViewServer

from hermes_queue.cli.overview import Lane, Overview, RedisState, RunProgress, StreamState
from hermes_queue.ledger.answers import RunStatus
from hermes_queue.ledger.fleet.lanes import LaneState
from hermes_queue.ledger.fleet.tally import Lately
from hermes_queue.ledger.runs import RunInfo
from hermes_queue.results.consumers import ConsumerGroup
from hermes_queue.view import present
from hermes_queue.view.answers import Refusal
from hermes_queue.view.app import Call, Route
from hermes_queue.view.assets import Assets
from hermes_queue.view.index.cursors import PageError
from hermes_queue.view.index.index import Index
from hermes_queue.view.index.terms import FilterError
from hermes_queue.view.routes import every_route
from hermes_queue.view.site import Site
from hermes_queue.view.sources.jsonl import JsonlSource
from hermes_queue.view.tokens import Keys

LETTERS = [
    {
        "id": f"{int(time.time() * 1000) - 7_200_000}-0",
        "cause": "poison",
        "reason": "killed 3 workers",
        "run_id": RUN,
        "group_id": f"{RUN}.x",
        "env": "swe_smith",
        "instance_id": "owner__repo-999",
        "trajectory_id": f"{RUN}.x.1",
        "stage": "agent",
        "attempts": "3",
        "died": f"{int(time.time()) - 7300} trainer-1 agent\n{int(time.time()) - 7200} trainer-2 agent",
        "log": "Traceback (most recent call last):\n  MemoryError\n<script>window.ran = 1</script>",
    }
]


def overview(now: float) -> dict[str, Any]:
    """What `status --json` prints of a deployment that works."""
    counters = RunStatus(total=260, queued=10, running=152, finished=96, failed=2, groups=12)
    info = RunInfo(
        RUN, "active", "", "", now - 3600, {}, 0, {}, 12, None, counters
    )
    oldest = {"age_s": 66.0, "stage": "agent", "turns": 2, "attempt": 1, "label": f"{RUN} owner__repo-401 #0", "trajectory_id": f"{RUN}.1.0"}
    worker = {"name": "trainer-1", "owner": "w1", "slots": 100, "running": 100, "sandboxes": 98, "silent_s": 1.2, "intake": "open", "stages": {"agent": 98, "setup": 2}, "oldest": [oldest]}
    late = {"name": "trainer-2", "owner": "w2", "slots": 100, "running": 52, "sandboxes": 50, "silent_s": 41.0, "intake": "draining", "stages": {"agent": 50, "verify": 2}, "oldest": []}
    seen = Overview(
        at=now,
        redis=RedisState("7.0.15", 2_400_000, 0, "noeviction", True, 12),
        lanes=(
            Lane("train", 78, 3, 84.0, 152, 2, LaneState("train")),
            Lane("eval", 12, 0, 300.0, 0, 1, LaneState("eval", "open", "model", "the endpoint answers 503", now - 60, now + 60)),
        ),
        delayed=4,
        leased=152,
        workers=(worker, late),
        sandboxes=148,
        starting=2,
        runs=(RunProgress(info, 1946.0, 390.0),),
        lately=Lately(3600.0, {"": 445, "sandbox": 7, "model": 3}, {RUN: 96}),
        dead_letters=len(LETTERS),
        stream=StreamState(48, 1_200_000, (ConsumerGroup("trainer", True, {}, 1, 2, 0, 0.5),)),
    )
    return {**asdict(seen), "oldest": seen.oldest}


class Deployment:
    """A fleet that somebody moves by hand: `tell` speaks to all who listen."""

    def __init__(self) -> None:
        self.seen = overview(time.time())

    def overview(self) -> Mapping[str, Any]:
        return self.seen

    def subscribe(self, tell: Callable[[str, Any], None]) -> Any:
        raise NotImplementedError


class Pages:
    """The answers of the API from an index."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.acted: list[tuple[str, dict[str, Any]]] = []
        self.reviews: list[dict[str, Any]] = []
        self.fleet = Deployment()

    # --- lists ---------------------------------------------------------------------------

    def trajectories(self, call: Call) -> Any:
        query, upto = call.query, call.query.get("upto")
        page = self.index.page(
            query.get("q", ""),
            sort=query.get("sort", "-created"),
            after=query.get("after"),
            upto=int(upto) if upto else None,
            limit=call.number("limit", 100, most=500),
        )
        return {"rows": page.rows, "next": page.next, "count": page.count, "upto": page.upto, "indexing": False}

    def histogram(self, call: Call) -> Any:
        return self.index.histogram(call.query.get("q", ""), call.query.get("of", "score"))

    def runs(self, call: Call) -> Any:
        return {"runs": [{**run, "ledger": None} for run in self.index.runs()]}

    def run(self, call: Call) -> Any:
        return _found(self.index.run(call.path["run"])) | {"ledger": None}

    def groups(self, call: Call) -> Any:
        page = self.index.groups(call.query.get("q", ""), sort=call.query.get("sort", "-created"), after=call.query.get("after"))
        return {"groups": page.groups, "next": page.next, "count": page.count, "upto": page.upto, "indexing": False}

    def group(self, call: Call) -> Any:
        return _found(self.index.group(call.path["group"]))

    # --- one trajectory --------------------------------------------------------------------

    def _raw(self, call: Call) -> Mapping[str, Any]:
        return _found(self.index.read(call.path["id"]))

    def trajectory(self, call: Call) -> Any:
        raw, name, query = self._raw(call), call.path["id"], call.query
        messages = present.messages(raw)
        upto = query.get("upto")
        around = self.index.neighbours(name, query["q"], sort=query.get("sort", "-created"), upto=int(upto) if upto else None) if "q" in query else None
        return {
            "row": self.index.row(name),
            "head": present.head(raw),
            "report": present.report(raw),
            "stages": present.stages(raw),
            "events": present.events(raw),
            "attempts": present.attempts(raw),
            "outline": present.outline(raw),
            "messages": messages,
            "next": _next(raw, messages),
            "sequences": present.sequences(raw),
            "neighbours": around,
        }

    def messages(self, call: Call) -> Any:
        raw = self._raw(call)
        messages = present.messages(raw, call.number("from", 0, most=10**9))
        return {"messages": messages, "next": _next(raw, messages)}

    def message(self, call: Call) -> Any:
        return _found(present.message(self._raw(call), int(call.path["n"])))

    def patch(self, call: Call) -> Any:
        return present.patch(self._raw(call))

    def verifier(self, call: Call) -> Any:
        return present.verifier(self._raw(call))

    def turns(self, call: Call) -> Any:
        return {"turns": present.sequence_turns(self._raw(call), int(call.path["k"]))}

    def tokens(self, call: Call) -> Response:
        octets = _found(present.tokens(self._raw(call), int(call.path["k"])))
        return Response(octets, media_type="application/octet-stream")

    def record(self, call: Call) -> Response:
        text = json.dumps(self._raw(call), default=list)
        headers = {"Content-Disposition": 'attachment; filename="record.json"'}
        return Response(text, media_type="application/json", headers=headers)

    # --- live, dead letters, actions, reviews ------------------------------------------------

    def events(self, call: Call) -> Response:
        def stream() -> Iterator[bytes]:
            yield _event(1, "overview", self.fleet.overview())
            last = 0
            for number in range(2, 10**6):
                if call.site.stopping.is_set():
                    return
                if (upto := self.index.upto()) != last:
                    last = upto
                    yield _event(number, "index", {"upto": upto, "count": upto, "indexing": False})
                time.sleep(0.1)

        return StreamingResponse(stream(), media_type="text/event-stream")

    def dead(self, call: Call) -> Any:
        q = call.query.get("q", "")
        found = [letter for letter in LETTERS if all(word.split(":")[-1] in str(letter) for word in q.split())]
        return {"letters": found, "count": len(found)}

    def act(self, call: Call) -> Any:
        body = dict(call.body)
        if not body.get("dry_run"):
            self.acted.append((call.path["name"], body))
        return {"met": 2, "done": 0 if body.get("dry_run") else 2, "command": f"hermes-queue {call.path['name'].replace('_', ' ')} …"}

    def labels(self, call: Call) -> Any:
        return {"reviews": self.reviews}

    def label(self, call: Call) -> Response:
        self.reviews.append(dict(call.body))
        self.index.set_reviews({call.body["trajectory_id"]: call.body["label"]})
        return Response(status_code=204)

    def routes(self) -> tuple[Route, ...]:
        """Those of the API that the server does not have."""
        t = "/api/t/{id}"
        table = {
            "/api/trajectories": self.trajectories, "/api/histogram": self.histogram,
            "/api/runs": self.runs, "/api/runs/{run}": self.run,
            "/api/groups": self.groups, "/api/groups/{group}": self.group,
            t: self.trajectory, f"{t}/messages": self.messages, f"{t}/messages/{{n}}": self.message,
            f"{t}/patch": self.patch, f"{t}/verifier": self.verifier, f"{t}/tokens/{{k}}": self.tokens,
            f"{t}/tokens/{{k}}/turns": self.turns, f"{t}/record": self.record,
            "/api/overview": lambda call: self.fleet.overview(), "/api/events": self.events,
            "/api/dead": self.dead, "/api/reviews": self.labels,
        }
        known = {(route.method, route.path) for route in every_route()}
        found = [Route("GET", path, _answered(answer), parameters=_PARAMETERS) for path, answer in table.items()]
        found.append(Route("POST", "/api/actions/{name}", _answered(self.act), role="operate"))
        found.append(Route("POST", "/api/reviews", _answered(self.label)))
        return tuple(route for route in found if (route.method, route.path) not in known)


_PARAMETERS = ("q", "sort", "after", "upto", "limit", "of", "from")


def _found(value: Any) -> Any:
    if value is None:
        raise Refusal(404, "there is nothing of that name")
    return value


def _next(raw: Mapping[str, Any], messages: list[Any]) -> int | None:
    last = messages[-1]["n"] + 1 if messages else 0
    return last if last < len(raw.get("messages") or ()) else None


def _event(number: int, name: str, data: Any) -> bytes:
    return f"id: {number}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode()


def _answered(answer: Callable[[Call], Any]) -> Callable[[Call], Response]:
    def run(call: Call) -> Response:
        try:
            said = answer(call)
        except (FilterError, PageError) as error:
            raise Refusal(400, str(error), getattr(error, "hint", ""), at=getattr(error, "at", None)) from error
        return said if isinstance(said, Response) else call.json(said)

    return run


class ViewedPages:
    """All of it, started."""

    def __init__(self, records: Path, cache: Path) -> None:
        self.index = Index(cache / "index", [JsonlSource(records)])
        self.index.refresh()
        self.pages = Pages(self.index)
        site = Site(
            keys=Keys({"view": VIEW_TOKEN, "operate": OPERATE_TOKEN}),
            cookie="hq_view",
            deployment="hq:",
            version="0.0.0",
            assets=Assets(),
            sources=[{"kind": "jsonl", "name": records.name}],
            fleet=self.pages.fleet,
            actions=True,
        )
        own = every_route()
        self.server = ViewServer(site, (*self.pages.routes(), *own))

    @property
    def address(self) -> str:
        return f"http://{self.server.authority}"

    def close(self) -> None:
        self.server.close()
        self.index.close()
