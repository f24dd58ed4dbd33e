"""Checks the current state of the deployment for anything that is stuck."""

from __future__ import annotations

import time
from collections.abc import Iterator

from hermes_queue.cli.doctor import Finding, error, ok, warning
from hermes_queue.cli.overview import Overview, overview
from hermes_queue.cli.watch.table import age
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.sandboxes import Sandboxes
from hermes_queue.settings import ResultSettings, SandboxSettings

SILENT_S = 25.0


def deployment_findings(ledger: Ledger) -> Iterator[Finding]:
    """Check workers, lanes, results, sandboxes and dead letters."""
    seen = overview(ledger)
    yield _workers(seen)
    yield from _lanes(seen)
    yield _results(seen)
    yield _sandboxes(ledger)
    if seen.dead_letters:
        yield warning(
            "deployment.dead_letters",
            f"{seen.dead_letters} dead letters need a decision",
            "hermes-queue dead list",
        )


def _workers(seen: Overview) -> Finding:
    name = "deployment.workers"
    if not seen.workers:
        return warning(name, "no worker is alive", "start one: celery -A hermes_queue worker -c 16")
    quiet = [str(each["name"]) for each in seen.workers if each["silent_s"] > SILENT_S]
    if quiet:
        return warning(
            name,
            f"{', '.join(quiet)}: silent for more than {SILENT_S:.0f} s",
            "see its log; its jobs run elsewhere after its leases have expired",
        )
    spooled = sum(each.get("spooled", 0) for each in seen.workers)
    text = f"{len(seen.workers)} live, {seen.leased} trajectories running"
    return ok(name, text + (f", {spooled} records in spools" if spooled else ""))


def _lanes(seen: Overview) -> Iterator[Finding]:
    for lane in seen.lanes:
        name = f"deployment.lane.{lane.name}"
        for held in lane.endpoints:
            yield warning(
                name,
                f"jobs that call {held.endpoint} wait ({held.cause}): {held.message}",
                f"fix the endpoint, then hermes-queue lanes resume {lane.name}",
            )
        if lane.breaker.state != "closed":
            yield warning(
                name,
                f"paused ({lane.breaker.cause}): {lane.breaker.message}",
                f"fix the cause, then hermes-queue lanes resume {lane.name}",
            )
        elif lane.depth and not lane.workers:
            waits = f", the first for {age(lane.oldest_s)}" if lane.oldest_s is not None else ""
            yield error(
                name,
                f"{lane.depth} jobs wait{waits}, and no worker serves the lane",
                f"start a worker with HERMES_QUEUE_WORKER_LANES={lane.name}",
            )
        else:
            yield ok(name, f"{lane.depth} waiting, {lane.workers} workers")


def _results(seen: Overview) -> Finding:
    name, limits, stream = "deployment.results", ResultSettings(), seen.stream
    text = f"{stream.groups} groups, {stream.bytes / 2**20:.1f} MB in the stream"
    behind = ", ".join(f"{each.name} ({each.behind} behind)" for each in stream.readers)
    if stream.groups >= limits.soft_max_groups or stream.bytes >= limits.soft_max_bytes:
        return error(
            name,
            f"{text}: over the soft limit, so no new group begins; readers: {behind or 'none'}",
            "start the readers that are behind, or hermes-queue groups remove NAME",
        )
    idle = [
        each.name
        for each in stream.readers
        if each.durable and each.behind and (each.idle_s is None or each.idle_s > 3600)
    ]
    if idle:
        return warning(
            name,
            f"{text}; kept for {', '.join(idle)}, which read nothing for an hour",
            "start them, or hermes-queue groups remove NAME",
        )
    return ok(name, text)


def _sandboxes(ledger: Ledger) -> Finding:
    name, section = "deployment.sandboxes", SandboxSettings()
    late_s = section.reap_s + section.reap_grace_s + 30
    records = Sandboxes(ledger).all()
    leaked = [record for record in records if record.lease_s < -late_s]
    if not leaked:
        return ok(name, f"{len(records)} on record, none leaked")
    oldest = age(time.time() - min(record.created for record in leaked))
    return warning(
        name,
        f"{len(leaked)} sandboxes of dead workers are still on record, the oldest is {oldest} old",
        "start a worker on their host (it removes them), or hermes-queue sandboxes list",
    )
