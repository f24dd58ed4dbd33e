"""The sources of a mix: their rows, options and plans."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from envs.base import load_env
from hermes_plugins.mix.document import Flags, FlagValue, MixDocument, SourceTable
from hermes_plugins.mix.store import StoredItems, StoredSelection
from hermes_queue import extensions
from hermes_queue.agent.registry import check_in_runs
from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.ledger.tasks import solver_of
from hermes_queue.models import TrajectoryJob
from producers.known.options import KnownOptions
from producers.run.flags import Options
from producers.run.options import (
    AgentOptions,
    GroupOptions,
    LimitOptions,
    OutputOptions,
    ProducerOptions,
    RowOptions,
    RunOptions,
    StalenessOptions,
)
from producers.run.plan import Plan, make_plan
from producers.run.sandbox_options import SandboxOptions
from producers.run.selection import select
from producers.run.words import options_in
from producers.source import Producer

_GROUPS: dict[str, type[Options]] = {
    "rows": RowOptions,
    "agent": AgentOptions,
    "run": RunOptions,
    "groups": GroupOptions,
    "staleness": StalenessOptions,
    "limits": LimitOptions,
}
_OF_THE_MIX = {
    "run_id": "the name of the mix is its run id",
    "concurrency": "a mix only enqueues; set it where workers are started",
    "cycle": "rows come again by themselves; say how often with epochs",
    "max_ahead": "set max_ahead of the mix",
    "max_drift": "set max_drift of the mix",
    "team": "set slots.team of the mix",
    "max_running": "set slots.max_running of the mix",
    "weight": "set weight of the source, or slots.weight of the mix",
    "follow": "a mix only enqueues",
    "out": "a mix only enqueues; see hermes-queue sink",
}
"""Flags that a source cannot have, and why."""
_BY_SAMPLER = {each.name for each in fields(KnownOptions)} - {"longest_first", "estimate"}


@dataclass(frozen=True)
class MixSource:
    """One source, with all of its rows read and validated."""

    name: str
    table: SourceTable
    plan: Plan
    selection: StoredSelection

    @property
    def items(self) -> StoredItems:
        """Its rows."""
        return self.selection.items

    @cached_property
    def group_jobs(self) -> int:
        """Jobs of a group; of groups of several sizes, those of the first row."""
        return self.plan.size_of(self.items[0]) + self.plan.group_policy.extra_samples

    @property
    def config(self) -> dict[str, Any]:
        """What must be the same whenever the mix is started."""
        return self.plan.config(self.selection.dataset)

    @property
    def solver(self) -> str:
        """Name under which the memory of tasks knows who works on it."""
        return solver_of(self.plan.agent).model

    def jobs(self, index: int, step: str) -> tuple[list[TrajectoryJob], dict[str, bytes]]:
        """The group of a row, and the rows and programs that its jobs name by hash.

        `step` tells the groups of one row apart.
        """
        selected = self.items.stored(index, f"{self.name}/", step).selected
        return list(self.plan.jobs_of(selected)), self.plan.items([selected])

    def close(self) -> None:
        """Delete the copy of its rows."""
        self.items.close()


def open_sources(document: MixDocument) -> Iterator[MixSource]:
    """Read and validate the rows of every source, one after the other.

    Raises:
        ConfigurationError, InputError: names the source, the flag or row, and the fix.
    """
    for name, table in document.sources.items():
        try:
            yield _opened(document, name, table)
        except HermesQueueError as error:
            error.args = (f"sources.{name}: {error}",)
            raise


def _opened(document: MixDocument, name: str, table: SourceTable) -> MixSource:
    producer: Producer = extensions.load("producer", table.producer)
    options = _options(document, producer, table)
    check_in_runs(options.agent.kind)
    env = load_env(options.run.env)
    plan = make_plan(producer, env, options)
    dataset = producer.dataset_of(options.rows.dataset, options.rows.split)
    selection = StoredSelection(dataset.name)
    try:
        select(producer, env, dataset, options, plan.misfit_for(env), into=selection)
        selection.complete()
        plan.check(selection)
        code = producer.call("check", selection.items, options, place=dataset.name)
        if code is not None:
            raise ConfigurationError(
                f"flags: have producer {producer.name!r} examine rows instead of running them; "
                "leave that flag out here, and use the producer's own command"
            )
    except BaseException:
        selection.items.close()
        raise
    return MixSource(name, table, plan, selection)


def _options(document: MixDocument, producer: Producer, table: SourceTable) -> ProducerOptions:
    flags: Flags = {"items": "all"} | _normal(document.flags) | _normal(table.flags)
    by_sampler = dict.fromkeys(_BY_SAMPLER, "rows are chosen by the sampler pass_rate")
    for refused, why in (_OF_THE_MIX | by_sampler).items():
        if refused in flags:
            raise ConfigurationError(f"flags.{refused}: cannot be set here: {why}")
    if flags.get("instance_id"):
        flags.pop("items")
    sandbox = SandboxOptions()
    words = list(_words(flags))
    try:
        options = options_in(
            words,
            _GROUPS,
            producer,
            command=f"python -m producers.{producer.name}",
            output=OutputOptions(quiet=True),
            sandbox=sandbox,
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"flags: {error}") from error
    return replace(options, run=replace(options.run, run_id=document.name))


def _normal(flags: Mapping[str, FlagValue]) -> Flags:
    return {name.lstrip("-").replace("-", "_"): value for name, value in flags.items()}


def _words(flags: Mapping[str, FlagValue]) -> Iterator[str]:
    """Flags as they are typed: a list repeats its flag, a table gives KEY=VALUE for each key."""
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            yield flag
        elif value is False:
            continue
        elif isinstance(value, dict):
            for key, each in value.items():
                text = each if isinstance(each, str) else json.dumps(each)
                yield f"{flag}={key}={text}"
        else:
            for each in value if isinstance(value, list) else [value]:
                yield f"{flag}={each}"
