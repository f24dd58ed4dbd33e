"""The jobs of a regrade: one for each record, each a group of its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from envs.base import Environment
from hermes_plugins.regrade.records import PassedOver, RecordedWork
from hermes_queue.agent.kinds.recorded import KIND
from hermes_queue.bodies import codec
from hermes_queue.broker.submission import RUN_ID_MAX
from hermes_queue.errors import InputError
from hermes_queue.ledger.answers import short_env
from hermes_queue.models import AgentSpec, TrajectoryJob
from hermes_queue.wire.names import make_ids
from producers.run.dataset import BUNDLED
from producers.run.options import ProducerOptions
from producers.run.plan import Plan, make_plan
from producers.run.selection import SelectedItems, select
from producers.source import Producer, SelectedItem


@dataclass(slots=True)
class SelectedRecords(SelectedItems):
    """The rows of a regrade, one for each record, and the records without one."""

    passed_over: PassedOver = field(default_factory=PassedOver)

    def skip_lines(self) -> list[str]:
        """What is not regraded, for people: one line for each reason."""
        return self.passed_over.lines()


@dataclass(frozen=True, slots=True)
class RegradePlan(Plan):
    """Properties that the jobs of a regrade share, and the work of each."""

    works: Mapping[str, RecordedWork] = field(default_factory=dict)
    """By the key of the selected item."""

    def size_of(self, item: SelectedItem) -> int:
        """One: what happens to one record is no other's business."""
        return 1

    def config(self, dataset: str) -> dict[str, Any]:
        """What all calls for one run id must agree on.

        Rows and versions of the env may differ: the jobs then have other ids.
        """
        return {
            "producer": "regrade",
            "env": self.options.run.env,
            "limits": self.limits.model_dump(mode="json"),
            "profile": self.options.run.profile,
        }

    def jobs_of(self, selected: SelectedItem) -> Iterator[TrajectoryJob]:
        """The job of one record."""
        run, work = self.options.run, self.works[selected.key]
        group_id, trajectory_id = make_ids(self.run_id, selected.key, 0)
        yield TrajectoryJob(
            run_id=self.run_id,
            group_id=group_id,
            trajectory_id=trajectory_id,
            sample_index=0,
            env=run.env,
            instance_id=selected.instance_id,
            item=None if selected.sha256 else selected.item(),
            item_sha256=selected.sha256 or None,
            agent=AgentSpec(kind=KIND, params=work.params()),
            limits=self._limits_of(selected),
            profile=run.profile,
            lane=run.lane,
            priority=run.priority,
            producer=self.provenance,
        )


def plan_regrade(
    producer: Producer,
    env: Environment[Any],
    options: ProducerOptions,
    works: Iterable[RecordedWork],
    passed_over: PassedOver,
) -> tuple[RegradePlan, SelectedRecords]:
    """The jobs that measure `works` again, with the rows that the dataset has for them today.

    A record whose row is not there is added to `passed_over`. The same records, rows and version of
    the env give the same ids, so that what was regraded once is not regraded again.

    Raises:
        ConfigurationError, InputError: see `make_plan` and `select`; or no record has a row.
    """
    rows = options.rows
    works = list(works)
    if (rows.dataset or producer.dataset) == BUNDLED and not producer.has_rows():
        raise InputError(
            f"env {options.run.env} brings no rows: name a file of the rows that the records were "
            "made from with --dataset"
        )
    named = replace(rows, items=None, instance_id=tuple({work.instance_id for work in works}))
    dataset = producer.dataset_of(rows.dataset, rows.split)
    chosen = select(producer, env, dataset, replace(options, rows=named), absent_ok=True)
    by_id = {item.instance_id: item for item in chosen.items}
    selected, kept = SelectedRecords(chosen.dataset, passed_over=passed_over), {}
    for work in works:
        item = by_id.get(work.instance_id)
        if item is None:
            reason = f"{chosen.dataset} has no row for it; name another source with --dataset"
            passed_over.add(reason, work.record.trajectory_id)
            continue
        key = _key(work, item, env.version)
        kept[key] = work
        selected.items.append(replace(item, key=key))
    plan = make_plan(producer, env, options)
    if not selected.items:
        raise InputError("; ".join(["no record can be regraded", *passed_over.lines()]))
    shared = {each.name: getattr(plan, each.name) for each in fields(Plan)}
    return RegradePlan(**shared, works=kept), selected


def _key(work: RecordedWork, item: SelectedItem, version: str) -> str:
    """Names one measurement: of this record's work, with this row, by this verifier."""
    # The ids of a run that was purged come again, with other work.
    parts = (work.params(), item.item())
    digests = (hashlib.sha256(codec.encode_item(part)).hexdigest() for part in parts)
    return " ".join((work.record.trajectory_id, *digests, version))


def default_run_id(env: str, source: str) -> str:
    """The run of the regrades of a file or run by one env: the same whenever it is asked for."""
    name = source.rpartition("/")[2].removesuffix(".jsonl")
    plain = re.sub(r"[^A-Za-z0-9._:-]", "-", f"regrade-{short_env(env)}-{name}")
    if len(plain) <= RUN_ID_MAX:
        return plain
    digest = hashlib.sha256(plain.encode()).hexdigest()[:16]
    return f"{plain[: RUN_ID_MAX - 17]}-{digest}"
