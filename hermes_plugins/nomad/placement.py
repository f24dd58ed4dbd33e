"""From a job to its running allocation, and to the cause of its end.

Jobs are named by us, allocations by the scheduler. A job that finds no room stays queued at Nomad
(a "blocked evaluation"), so the time for that is limited here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_plugins.containers.images.hosted import THROTTLED, THROTTLED_RETRY_S, UNKNOWN
from hermes_plugins.nomad.changes import unix_time
from hermes_plugins.nomad.client import NomadClient
from hermes_plugins.nomad.job import TASK, driver_says
from hermes_plugins.nomad.settings import NomadSettings
from hermes_queue.errors import SandboxError, SandboxRejected, SandboxUnavailable, SlotLost

WAIT_S = 5
"""Of one blocking query; then evaluations are looked at, too."""
MARGIN_S = 25.0
"""For the answer to a blocking query, over its time."""
POLL_S = 0.3
"""Between queries of an agent that does not block."""
NO_ROOM_RETRY_S = 30.0
ENDED = ("complete", "failed", "lost", "unknown")
"""`ClientStatus` of allocations that are not, or may not be, there any more."""
PULL = re.compile(r"pull|image", re.IGNORECASE)
ADVICE = (
    (
        re.compile(r"capabilit", re.IGNORECASE),
        "add them to `allow_caps` of the driver on the nodes, or leave SYS_PTRACE out with "
        "HERMES_QUEUE_NOMAD_PTRACE=false",
    ),
    (
        re.compile(r"volumes? .{0,40}(not|disabled)", re.IGNORECASE),
        "allow volumes in the driver's configuration on the nodes, or set "
        "HERMES_QUEUE_NOMAD_SHARED_CACHE=false",
    ),
    (
        re.compile(r"unable to find user|no matching entries in passwd", re.IGNORECASE),
        "name a user of the image",
    ),
    (
        re.compile(r"exec: .{0,80}(no such file|not found)", re.IGNORECASE),
        "slots need /bin/sh and /bin/bash in their image",
    ),
    (
        re.compile(r"runtime .{0,80}(not|unknown)|storage-opt|storage_opt", re.IGNORECASE),
        "see HERMES_QUEUE_NOMAD_RUNTIME and HERMES_QUEUE_NOMAD_DISK_MB",
    ),
)
"""What drivers refuse each time, and the fix."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A job's container on a node."""

    alloc_id: str
    node: str
    status: str
    """`ClientStatus`."""
    task: str
    """State of the task."""
    events: tuple[str, ...] = ()
    out_of_memory: bool = False

    @property
    def is_running(self) -> bool:
        """Whether commands can run in it."""
        return self.status == "running" and self.task == "running"

    @property
    def has_ended(self) -> bool:
        """Whether it will not run any more."""
        return self.status in ENDED or self.task == "dead"

    @property
    def pulls(self) -> bool:
        """Whether its node is getting the image."""
        return bool(self.events) and "ownloading image" in self.events[-1]


def allocation_of(found: Mapping[str, Any]) -> Allocation:
    """An allocation, or its stub in a list, in an agent's answer."""
    states = found.get("TaskStates")
    state = states.get(TASK) if isinstance(states, Mapping) else None
    state = state if isinstance(state, Mapping) else {}
    events = state.get("Events")
    events = events if isinstance(events, list) else []
    details = [each.get("Details") for each in events if isinstance(each, Mapping)]
    is_wanted = found.get("DesiredStatus") in (None, "", "run")
    return Allocation(
        str(found.get("ID") or ""),
        str(found.get("NodeName") or found.get("NodeID") or "?"),
        str(found.get("ClientStatus") or "") if is_wanted else "complete",
        str(state.get("State") or ""),
        tuple(driver_says(events)),
        any(isinstance(each, Mapping) and each.get("oom_killed") == "true" for each in details),
    )


def rows(body: Any, what: str) -> list[Mapping[str, Any]]:
    """A list of objects in an agent's answer. Raises SandboxError: it is something else."""
    if body is None:
        return []
    if not isinstance(body, list) or not all(isinstance(each, Mapping) for each in body):
        raise SandboxError(f"Nomad answers {what} with what is no list of objects: {body!r:.200}")
    return body


def newest(found: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The latest allocation of a job, which has one unless the scheduler has replaced it."""
    numbered = [each for each in found if isinstance(each.get("ID"), str)]
    return max(numbered, key=_created, default=None)


def _created(stub: Mapping[str, Any]) -> int:
    created = stub.get("CreateIndex")
    return created if isinstance(created, int) else 0


async def find(client: NomadClient, job: str) -> Allocation:
    """A job's allocation. Raises SlotLost: it has none."""
    answer = await client.request(f"job/{job}/allocations", gone=True)
    stub = newest(rows(answer.body, "allocations"))
    if stub is None:
        raise SlotLost(f"the job {job} has no allocation")
    return allocation_of(stub)


def started_at(found: Any) -> float:
    """Unix time, on its node, at which an allocation's task ran; 0.0 = the agent does not say."""
    states = found.get("TaskStates") if isinstance(found, Mapping) else None
    state = states.get(TASK) if isinstance(states, Mapping) else None
    return unix_time(str(state.get("StartedAt"))) if isinstance(state, Mapping) else 0.0


async def look(client: NomadClient, alloc_id: str) -> Allocation:
    """An allocation as it is now. Raises SlotLost: Nomad does not know it."""
    answer = await client.request(f"allocation/{alloc_id}", gone=True)
    if not isinstance(answer.body, Mapping):
        raise SandboxError(f"Nomad describes an allocation as {answer.body!r:.200}")
    return allocation_of(answer.body)


async def placed(client: NomadClient, job: str, image: str, settings: NomadSettings) -> Allocation:
    """Wait until a job's container runs.

    Raises:
        SandboxUnavailable: no node has room for it, or fits; or the registry is throttling a node.
        SandboxRejected: its node cannot start it, and would not later.
        SandboxError: it has failed, or needs too long.
    """
    loop = asyncio.get_running_loop()
    began, started, index = loop.time(), 0.0, 0
    while True:
        query = {"index": str(index), "wait": f"{WAIT_S}s"} if index else {}
        answer = await client.request(
            f"job/{job}/allocations", params=query, timeout_s=WAIT_S + MARGIN_S, making=True
        )
        now = loop.time()
        stub = newest(rows(answer.body, "allocations"))
        if stub is None:
            why = await _why_not_placed(client, job)
            if now - began > settings.placement_timeout_s:
                raise no_room(f"within {settings.placement_timeout_s:g} s", why)
        else:
            allocation = allocation_of(stub)
            started = started or now
            if allocation.is_running:
                return allocation
            if allocation.has_ended:
                raise not_started(allocation, image)
            _check_time(allocation, now - started, settings)
        if answer.index in (0, index):
            await asyncio.sleep(POLL_S)
        index = answer.index


def _check_time(allocation: Allocation, seconds: float, settings: NomadSettings) -> None:
    limit_s = settings.pull_timeout_s if allocation.pulls else settings.start_timeout_s
    if seconds > limit_s:
        raise SandboxError(
            f"the node {allocation.node} started no container in {limit_s:g} s: "
            f"{'; '.join(allocation.events[-3:]) or 'no details'}"
        )


async def _why_not_placed(client: NomadClient, job: str) -> str:
    """Why a job waits, or "". Raises SandboxUnavailable: no node fits, however free."""
    answer = await client.request(f"job/{job}/evaluations", making=True)
    for evaluation in rows(answer.body, "evaluations"):
        if evaluation.get("Status") == "failed":
            raise SandboxError(
                f"Nomad could not place a job: {evaluation.get('StatusDescription')}"
            )
        failed = evaluation.get("FailedTGAllocs")
        metrics = failed.get(TASK) if isinstance(failed, Mapping) else None
        if isinstance(metrics, Mapping):
            why, could_fit = shortage(metrics)
            if not could_fit:
                raise no_room("now", why)
            return why
    return ""


def no_room(when: str, why: str) -> SandboxUnavailable:
    """The failure of a placement."""
    return SandboxUnavailable(
        f"no node of the cluster takes a slot {when}: {why or 'Nomad does not say why'}",
        retry_after_s=NO_ROOM_RETRY_S,
    )


def shortage(metrics: Mapping[str, Any]) -> tuple[str, bool]:
    """Why the scheduler found no node (`AllocationMetric`), and whether one may become free."""

    def counts(name: str) -> dict[str, int]:
        found = metrics.get(name)
        return {str(k): v for k, v in found.items() if v} if isinstance(found, Mapping) else {}

    exhausted = counts("DimensionExhausted") | counts("ClassExhausted") | counts("QuotaExhausted")
    if not exhausted and isinstance(metrics.get("QuotaExhausted"), list):
        exhausted = {str(each): 1 for each in metrics["QuotaExhausted"]}
    if exhausted or metrics.get("NodesExhausted"):
        used_up = ", ".join(sorted(exhausted)) or "something"
        return f"used up on {metrics.get('NodesExhausted', '?')} nodes: {used_up}", True
    if not metrics.get("NodesEvaluated"):
        return (
            "no ready node is in HERMES_QUEUE_NOMAD_DATACENTERS and HERMES_QUEUE_NOMAD_NODE_POOL",
            False,
        )
    filtered = counts("ConstraintFiltered") | counts("ClassFiltered")
    shown = ", ".join(f"{name} ({count} nodes)" for name, count in sorted(filtered.items()))
    return f"none fits: {shown or 'no details'}", False


def not_started(allocation: Allocation, image: str) -> SandboxError:
    """The failure of an allocation that has ended instead of running."""
    why = "; ".join(allocation.events[-4:])[-1000:] or "no details"
    message = f"the node {allocation.node} could not start a container of {image}: {why}"
    for pattern, advice in ADVICE:
        if pattern.search(why):
            return SandboxRejected(f"{message}. {advice[0].upper()}{advice[1:]}")
    if PULL.search(why):
        if THROTTLED.search(why):
            return SandboxUnavailable(message, retry_after_s=THROTTLED_RETRY_S)
        if UNKNOWN.search(why):
            return SandboxRejected(
                f"{message}. If the image is private, give the nodes their registry's login"
            )
    return SandboxError(message)
