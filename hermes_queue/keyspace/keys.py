"""Every key of a deployment, without its prefix: one row per key, and no key without a row.

Plugins declare theirs.

The tables of docs/redis-keys.md and docs/security.md are generated from it (`make docs`).
Tests compare it with the scripts, the code and the rights in deploy/redis/users.acl; the chaos
harness relies on `may_stay`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from hermes_queue.core import added

Right = Literal["rw", "r", "w", "-"]
"""Read and write; read only; add only; no access."""
ROLES = ("producer", "consumer", "monitor", "flower")
"""Redis users with rights on some keys; `worker` and `operator` read and write all of them,
and `viewer` reads them all."""


@dataclass(frozen=True, slots=True)
class Key:
    """One kind of key."""

    pattern: str
    """Variable parts are in braces."""
    type: str
    owner: str
    """The room that writes it; `broker` = Celery and kombu."""
    what: str
    expires: str
    """Expiry, for people; "" = removed with its last entry."""
    _rights: str = "- - - -"
    """In the order of `ROLES`."""
    may_stay: bool = False
    """Whether it has no expiry although it can outlive all work."""

    @property
    def rights(self) -> dict[str, str]:
        """Rights by role."""
        return dict(zip(ROLES, self._rights.split(), strict=True))

    def matches(self, name: str) -> bool:
        """Whether a key, without its prefix, is of this kind."""
        parts = re.split(r"\{[^}]*\}", self.pattern)
        return re.fullmatch(".+".join(map(re.escape, parts)), name) is not None


def keys() -> tuple[Key, ...]:
    """The core's keys and those of all plugins.

    Raises:
        ConfigurationError: a plugin's keys cannot be imported.
    """
    return (*KEYS, *(key for rows in added("keys") for key in rows))


def may_stay(name: str) -> bool:
    """Whether a key, without its prefix, may remain without expiry when all work is done."""
    return any(key.may_stay and key.matches(name) for key in keys())


_END = "after the end"
_RUN = "90 days"
_DAY = "a day"

KEYS = (
    # --- the broker's
    Key("v1.{lane}", "list", "broker", "messages of waiting jobs: trajectory id and attempt; "
        "`v1.{lane}.retry`: of retries and of jobs handed back", "when taken", "rw - r r"),
    Key("_kombu.binding.{queue}", "set", "broker", "names of all queues", "no", "rw - r rw",
        True),
    Key("unacked", "hash", "broker", "messages that a worker has taken and not acknowledged", "",
        "- - r rw"),
    Key("unacked_index", "zset", "broker", "the same, by the time they were taken", "",
        "- - r rw"),
    Key("unacked_mutex", "string", "broker", "worker that restores them", "no", "- - - rw", True),
    Key("celeryev.{id}", "list", "broker", "events for Flower", "when taken", "- - - rw"),
    Key("{id}.reply.celery.pidbox", "list", "broker", "answers of workers to remote control",
        "when taken", "- - - rw"),
    # --- jobs and groups
    Key("traj:{id}", "hash", "ledger", "state (queued, running, final, cancelled, surplus), "
        "attempt, epoch, owner, deaths, the job; of failed attempts the facts and, bounded, the "
        "transcripts", _END, "rw - - -"),
    Key("journal:{id}", "list", "ledger/fleet", "turns of a running trajectory, from which another "
        "worker may [continue](resume.md) it; bounded, msgpack and zstd", "with its trajectory, or "
        "two hours after the last turn (`HERMES_QUEUE_RESUME_TTL_S`)"),
    Key("handover:{id}", "string", "ledger/fleet", "what an agent has done that another worker "
        "[grades](stages.md#graders); msgpack and zstd", "with its trajectory, or after a day "
        "(`HERMES_QUEUE_STAGES_HANDOVER_TTL_S`)"),
    Key("handed", "zset", "ledger/fleet", "trajectories that wait to be graded, or are being "
        "graded, by the time at which their work expires", "with the last of them"),
    Key("graders:{lane}", "zset", "ledger/fleet", "hosts of workers that grade what agents of this "
        "lane have done, by the end of their last beat", _DAY),
    Key("group:{id}", "hash", "ledger", "size, policy, what its slots are made of, "
        "members so far and their summaries", _END, "rw r r -"),
    Key("item:{sha256}", "string", "ledger",
        "a row too large for its job, or the program of a run, once, zstd", _RUN, "rw - - -"),
    Key("leases", "zset", "ledger", "running trajectories by expiry, on Redis' own clock", "",
        "- - r -"),
    Key("delayed", "zset", "ledger", "jobs whose message has to be published, by due time", "",
        "rw - r -"),
    Key("waiting", "zset", "ledger", "jobs whose message is in the broker, so that a lost message "
        "is noticed", "", "rw - r -"),
    Key("ahead:{sha256}", "string", "ledger", "worker that prepares the environment of this item "
        "while jobs of it wait", _DAY),
    Key("reconcile:{lane}", "hash", "ledger", "position of the search for jobs that nobody could "
        "take", "an hour"),
    Key("recovery", "hash", "ledger", "position of the search for jobs that stand nowhere", _DAY),
    Key("junk", "string", "ledger", "key of a wrong type that was removed last, for that search",
        _DAY, "rw - - -"),
    # --- which of the waiting jobs is next
    Key("sched", "hash", "ledger/scheduling", "what operators [set](scheduling.md) for lanes, "
        "teams, runs and envs; the scheduler's clock, usage and waiting jobs of lanes", "no",
        "- - r -", True),
    Key("sched:running", "hash", "ledger/scheduling", "running jobs of leaves and the slot-time to "
        "charge for them; with limits, running jobs of lanes, teams and envs", "no: a leaf's a day "
        "after its last job", "- - r -", True),
    Key("sched:leaves", "zset", "ledger/scheduling", "leaves of the tree of waiting jobs, "
        "`lane|team|run|env`, by the time of the last job", _RUN, "rw - r -"),
    Key("sched:jobs:{leaf}", "zset", "ledger/scheduling", "waiting jobs, the next one first", _RUN,
        "rw - r -"),
    Key("sched:open:{node}", "zset", "ledger/scheduling", "children of a node under which a job "
        "may begin, by usage", _RUN, "rw - r -"),
    Key("sched:shut:{node}", "zset", "ledger/scheduling", "its other children, by usage",
        "two days", "rw - r -"),
    Key("sched:blocked", "zset", "ledger/scheduling", "limits that are reached", _RUN, "- - r -"),
    Key("sched:blocked:{limit}", "set", "ledger/scheduling", "leaves that wait for one", _RUN),
    Key("sched:spent:{quota}", "string", "ledger/scheduling", "slot-seconds used in a window",
        "after the next window"),
    Key("sched:took:{owner}", "hash", "ledger/scheduling", "latest jobs given to a worker, in "
        "case an answer was lost", _DAY),
    Key("sweep:last", "string", "ledger", "time of the last sweep of leases", _DAY, "- - r -"),
    # --- runs
    Key("run:{id}", "hash", "ledger", "state, counters, configuration, budgets, lock",
        _RUN, "rw rw r -"),
    Key("run:{id}:claimed", "set", "ledger", "jobs enqueued so far", _RUN, "rw r r -"),
    Key("run:{id}:parked", "set", "ledger", "waiting jobs set aside by a pause", _RUN, "rw r r -"),
    Key("run:{id}:ahead", "hash", "ledger", "groups of a [paced](trainers.md#pacing) run that have "
        "begun and are neither trained nor given up, with their entries in the stream", _RUN,
        "rw rw r -"),
    Key("run:{id}:held", "zset", "ledger", "jobs that wait for the trainer that paces their run, "
        "in the order in which they came", _RUN, "rw r r -"),
    Key("paced", "zset", "ledger", "runs with such jobs, and budgets for which jobs wait, by the "
        "time of the first one",
        "with the last of them", "- - r -"),
    Key("failed:{id}", "hash", "ledger", "final failures of a run, with their jobs", _RUN),
    Key("purged:{id}", "string", "ledger", "number of purges of a run: its ids begin another "
        "life with the next enqueue, and remains of a former one no longer count", _RUN,
        "rw - - -"),
    Key("runs", "zset", "ledger", "run ids by the time of their last enqueue", _RUN, "rw r r -"),
    # --- results
    Key("body:{id}", "string", "ledger", "the record, msgpack with typed arrays and zstd; `~` and "
        "a number follow the id in later lives of a purged run", "no: deleted with its group, see "
        "[results](results.md)", "- r - -", True),
    Key("staged:{token}", "string", "ledger", "a large record on its way to `body:{id}`, until its "
        "publication has run", "five minutes"),
    Key("results", "stream", "ledger", "one entry per finished group, plain fields for filtering",
        "no: trimmed when read by all", "- r r -", True),
    Key("results:bytes", "string", "ledger", "size of all bodies that wait for a reader, of open "
        "groups too", "no", "- r r -", True),
    Key("results:trimmed", "string", "results", "time of the last trim of the stream", _DAY,
        "- - r -"),
    Key("results:trim_place", "string", "results", "entry after which the next trim goes on", _DAY,
        "- - r -"),
    Key("objects", "zset", "ledger/fleet", "objects of large bodies in the store by the time "
        "of the next check whether they are needed", "when the object is deleted", may_stay=True),
    Key("objects:doomed", "zset", "ledger/fleet", "objects that are being deleted",
        "when the object is deleted", may_stay=True),
    Key("dead", "stream", "ledger", "[dead letters](dead-letters.md)", "no: trimmed after 30 days",
        "- w - -", True),
    Key("poison", "hash", "ledger", "items under which workers died, by SHA-256: the dead letter "
        "and the time at which they are forgotten", "with the last letter, 30 days", "r - - -"),
    Key("task:{task}", "string", "ledger/tasks", "what is [remembered of a task]"
        "(task-memory.md), `{env}:{sha256}`: attempts, scores, seconds, cost, deaths (JSON)",
        "90 days after its last trajectory (`HERMES_QUEUE_TASKS_KEPT_S`)", "r - r -"),
    Key("tasks", "zset", "ledger/tasks", "remembered tasks by their last use; at most "
        "`HERMES_QUEUE_TASKS_MAX_ENTRIES`", "as `task:{task}`", "r - r -"),
    Key("consumer-group:{name}", "hash", "results", "a consumer group's filter, start and "
        "durability", "no", "- rw r -", True),
    Key("sink:{group}", "string", "results", "the process that serves this consumer group, for "
        "sinks and trainers that must be alone", "10 s", "- rw - -"),
    # --- lanes and the fleet
    Key("lanes", "zset", "ledger/fleet", "lanes by the time of the last job sent to them",
        "30 days", "rw - r -"),
    Key("lane:{lane}", "hash", "ledger/fleet", "the circuit breaker of a lane", "a day after",
        "r - r -"),
    Key("lane:{lane}:outcomes", "hash", "ledger/fleet", "outcomes of its recent attempts",
        "four minutes", "r - r -"),
    Key("lane:{lane}:endpoints", "hash", "ledger/fleet", "model endpoints whose circuit breakers "
        "are not closed in this lane: a digest of URL and model, and their names", "a day after",
        "r - r -"),
    Key("lane:{lane}:endpoint:{digest}", "hash", "ledger/fleet", "the circuit breaker of such an "
        "endpoint", "a day after", "r - r -"),
    Key("lane:{lane}:endpoint:{digest}:outcomes", "hash", "ledger/fleet", "outcomes of recent "
        "attempts that called it", "four minutes", "r - r -"),
    Key("worker:{owner}", "string", "ledger/fleet", "a live worker's heartbeat", "seconds",
        "r r r -"),
    Key("workers", "zset", "ledger/fleet", "live workers, by expiry of their heartbeat",
        "seconds", "r r r -"),
    Key("life:{owner}", "hash", "ledger/fleet", "evidence about a worker's death: boot of its "
        "host, last beat, parent, whether it was shutting down, who found it dead", _DAY),
    Key("boot:{boot id}", "string", "ledger/fleet", "last beat of any worker of that "
        "boot of a host", _DAY),
    Key("log:{owner}", "string", "ledger", "the end of a worker's log, for dead letters",
        _DAY),
    Key("totals", "hash", "ledger", "counters of [metrics](metrics.md) over the deployment's life: "
        "trajectories, failures, retries, dead letters, cost", "no: at most 1,000 fields",
        "- - r -", True),
    Key("tally:{bucket}", "hash", "ledger/fleet", "failures by cause and ends by run of two "
        "minutes, for `top`", "90 minutes", "- - r -"),
    Key("budgets", "hash", "ledger/accounts", "names of the budgets that runs share: "
        "[goodput](goodput.md#budgets-that-runs-share)", "no", "- - r -", True),
    Key("budget:{name}", "hash", "ledger/accounts", "one of them: limits, spending, reservations",
        "when lifted", "- - r -", True),
    Key("budget-held:{name}", "zset", "ledger/accounts", "jobs that wait for room in it, in the "
        "order in which they came", _RUN, "- - r -"),
    Key("goodput", "hash", "ledger/accounts", "where the slot-time of the fleet went, with tokens "
        "and cost: [goodput](goodput.md)", "no", "- - r -", True),
    Key("goodput:{id}", "hash", "ledger/accounts", "the same of one run", _RUN, "- - r -"),
    Key("series:{id}", "hash", "ledger/accounts", "the course of a run over time, at most 3,000 "
        "fields", _RUN, "- - r -"),
    Key("slowest:{id}", "zset", "ledger/accounts", "its 50 longest trajectories, by seconds",
        _RUN, "- - r -"),
    Key("deployment", "string", "keyspace", "random id of this Redis' data; the spool on disk "
        "belongs to it", "no", "- - r -", True),
    # --- endpoints
    Key("limit:{name}", "hash", "ledger/fleet", "concurrent calls that an endpoint and model get, "
        "their pause and buckets; see [limits](limits.md)", "a day after the last call", "- - r -"),
    Key("limit:{name}:leases", "zset", "ledger/fleet", "calls in flight", "as `limit:{name}`",
        "- - r -"),
    Key("limit:{name}:waiting", "zset", "ledger/fleet", "waiting calls", "as `limit:{name}`",
        "- - r -"),
    Key("limit:{name}:seen", "zset", "ledger/fleet", "waiting calls that are believed alive",
        "as `limit:{name}`", "- - r -"),
    Key("flights:{name}", "hash", "ledger/fleet", "what was read of a model engine's metrics, and "
        "the share of its KV cache that contexts may take; see [engine "
        "pressure](engine-pressure.md)", "a day after the last call", "- - r -"),
    Key("flights:{name}:flying", "zset", "ledger/fleet", "trajectories in flight, in their order",
        "as `flights:{name}`", "- - r -"),
    Key("flights:{name}:tokens", "hash", "ledger/fleet", "tokens of their contexts",
        "as `flights:{name}`", "- - r -"),
    Key("flights:{name}:waiting", "zset", "ledger/fleet", "trajectories that wait for a place",
        "as `flights:{name}`", "- - r -"),
    Key("flights:{name}:wanted", "hash", "ledger/fleet", "tokens that these need",
        "as `flights:{name}`", "- - r -"),
    Key("flights:{name}:alive", "zset", "ledger/fleet", "ends of the leases of both",
        "as `flights:{name}`", "- - r -"),
    Key("probe:{hash}", "hash", "workers/calls", "whether the chat template of an endpoint and "
        "model shows tools", "an hour (`HERMES_QUEUE_MODEL_PROBE_TTL_S`)"),
    # --- sandboxes
    Key("sandboxes", "zset", "ledger/fleet", "sandboxes by the end of their lease",
        "7 days after the last renewal", "- - r -"),
    Key("sandbox:{id}", "string", "ledger/fleet", "labels, host, slot → trajectory",
        "7 days after the last renewal", "- - r -"),
    Key("creation:{backend}", "hash", "ledger/fleet", "the fleet's rate of new sandboxes",
        "a minute after", "- - r -"),
    Key("creation:{backend}:starting", "zset", "ledger/fleet", "sandboxes that are starting",
        "a minute after", "- - r -"),
    Key("reaper:{backend}:turn", "string", "ledger/fleet", "time of the last reaping", _DAY),
    Key("reaper:{backend}:suspects", "zset", "ledger/fleet", "sandboxes without an owner", _DAY),
    Key("snapshot:{hash}", "hash", "ledger/fleet", "the provider's snapshot that holds a set-up",
        "with the snapshot, 29 days"),
    Key("doctor:{random}", "string", "cli/doctor", "written and deleted by `hermes-queue doctor`",
        "10 s"),
)  # fmt: skip
