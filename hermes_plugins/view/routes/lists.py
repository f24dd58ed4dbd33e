"""Lists: trajectories, histograms, runs and groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from hermes_plugins.view.app import ApiCall, Route, nothing
from hermes_plugins.view.index.filters import described
from hermes_plugins.view.index.index import DEFAULT_SORT, LIMIT_MAX
from hermes_queue.errors import ConfigurationError, RedisFull, RedisUnavailable
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.accounts.fields import WORK
from hermes_queue.ledger.accounts.goodput import goodput_of_run
from hermes_queue.ledger.runs import RunInfo, Runs

UPTO_MAX = 1 << 53
"""Largest number that a page of a browser holds exactly."""
RUNS_MAX = 500
"""Runs of the ledger that are listed, most recently enqueued first."""
ACCOUNTS_MAX = 100
_LIST = ("q", "sort", "after", "upto", "limit")


def upto_of(call: ApiCall) -> int | None:
    """The row that pins a list; None = all that there are."""
    found = call.number("upto", -1, most=UPTO_MAX)
    return None if found < 0 else found


def listed(call: ApiCall) -> dict[str, Any]:
    """The parameters of a list, as the index takes them."""
    return {
        "sort": call.query.get("sort") or DEFAULT_SORT,
        "after": call.query.get("after") or None,
        "upto": upto_of(call),
        "limit": call.number("limit", 100, least=1, most=LIMIT_MAX),
    }


def trajectories(call: ApiCall) -> Response:
    """A page of trajectories."""
    index = call.site.index
    index.touch()
    call.site.show_reviews()
    indexing = index.indexing  # before the page: it says whether that may lack some
    page = index.page(call.query.get("q", ""), **listed(call))
    return call.json(
        {
            "rows": page.rows,
            "next": page.next,
            "count": page.count,
            "upto": page.upto,
            "scanned": page.scanned,
            "indexing": indexing,
            "problems": call.site.problems(),
        }
    )


def histogram(call: ApiCall) -> Response:
    """How many trajectories have which score, number of turns, ..."""
    call.site.show_reviews()
    found = call.site.index.histogram(
        call.query.get("q", ""), call.query.get("of", "score"), upto=upto_of(call)
    )
    return call.json(found)


def groups(call: ApiCall) -> Response:
    """A page of groups."""
    index = call.site.index
    index.touch()
    call.site.show_reviews()
    indexing = index.indexing
    page = index.groups(call.query.get("q", ""), **listed(call))
    return call.json(
        {
            "groups": page.groups,
            "next": page.next,
            "count": page.count,
            "upto": page.upto,
            "indexing": indexing,
        }
    )


def group(call: ApiCall) -> Response:
    """All samples of a group."""
    found = call.site.index.group(call.path["id"])
    if found is None:
        raise nothing()
    return call.json(found)


def runs(call: ApiCall) -> Response:
    """All runs, of the index and of Redis."""
    index = call.site.index
    index.touch()
    indexing = index.indexing
    infos, problems = _of_ledger(call)
    in_ledger = {info.run_id: ledger_facts(info) for info in infos}
    found = [{**run, "ledger": in_ledger.pop(run["run"], None)} for run in index.runs()]
    new = [{**_unindexed(name, facts), "ledger": facts} for name, facts in in_ledger.items()]
    answer = {"runs": [*new, *found], "indexing": indexing, "problems": problems}
    return call.json(answer)


def run(call: ApiCall) -> Response:
    """One run."""
    name = call.path["id"]
    infos, problems = _of_ledger(call, name)
    ledger = ledger_facts(infos[0]) if infos else None
    found = call.site.index.run(name)
    if found is None and ledger is None:
        raise nothing()
    if found is None:
        lists: dict[str, list[Any]] = {
            key: [] for key in ("envs", "models", "policies", "failures")
        }
        found = {**_unindexed(name, ledger or {}), **lists, "stages": {}}
    goodput = _goodput(call.site.ledger, name) if call.site.ledger and infos else None
    return call.json({**found, "ledger": ledger, "goodput": goodput, "problems": problems})


def fields(call: ApiCall) -> Response:
    """The words of the filter language."""
    return call.json({"fields": [{"name": name, "help": said} for name, said in described()]})


def _of_ledger(call: ApiCall, name: str | None = None) -> tuple[list[RunInfo], list[str]]:
    """What Redis says of a run, or of all, and what is wrong with it.

    While Redis is away, the index still knows what it has read.
    """
    if call.site.ledger is None:
        return [], []
    known = Runs(call.site.ledger)
    try:
        if name is None:
            return known.several(known.ids()[:RUNS_MAX]), []
        return [known.get(name)], []
    except ConfigurationError:  # unknown there, or unreadable
        return [], []
    except (RedisUnavailable, RedisFull) as error:
        return [], [str(error)]


def _goodput(ledger: Ledger, name: str) -> dict[str, Any] | None:
    """What a run got for its slot-time and where that went; None before a lease has ended."""
    try:
        good = goodput_of_run(ledger, name)
    except (RedisUnavailable, RedisFull):
        return None
    if good.per_slot_hour is None:
        return None
    accounts = sorted(good.seconds.items(), key=lambda account: -account[1])
    return {
        **{each: getattr(good, each) for each in ("scored", "leased_s", "usd")},
        **{each: getattr(good, each) for each in ("per_slot_hour", "per_usd")},
        "accounts": [
            {"name": name, "seconds": seconds, "is_lost": name not in WORK}
            for name, seconds in accounts[:ACCOUNTS_MAX]
            if seconds > 0
        ],
    }


def _unindexed(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """A run of which no trajectory has ended yet."""
    return {
        **dict.fromkeys(("mean", "cost", "finished")),
        **dict.fromkeys(("count", "scored", "failed", "flagged"), 0),
        "run": name,
        "created": facts.get("created"),
    }


def ledger_facts(info: RunInfo) -> dict[str, Any]:
    """A run as its ledger knows it."""
    counters = info.counters
    spent = info.accounts.get("usd")
    return {
        "state": info.state,
        "state_reason": info.reason,
        "paused_by": info.paused_by,
        "total": counters.total,
        "queued": counters.queued,
        "running": counters.running,
        "done": counters.finished,
        "failed": counters.failed,
        "cancelled": counters.cancelled,
        "spent_usd": spent.spent if spent else None,
        "budget_usd": spent.limit if spent else None,
        "policy_version": info.policy_version,
        "created": info.created,
    }


ROUTES = (
    Route("GET", "/api/trajectories", trajectories, parameters=_LIST),
    Route("GET", "/api/histogram", histogram, parameters=("q", "of", "upto")),
    Route("GET", "/api/fields", fields),
    Route("GET", "/api/groups", groups, parameters=_LIST),
    Route("GET", "/api/groups/{id}", group),
    Route("GET", "/api/runs", runs, asks_redis=True),
    Route("GET", "/api/runs/{id}", run, asks_redis=True),
)
