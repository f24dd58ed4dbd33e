"""One job of a producer, for a command that runs it in its own process: `hermes-queue play`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from envs.base import load_env
from hermes_queue import extensions
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import TrajectoryJob
from producers.run.dataset import BUNDLED
from producers.run.flags import Options
from producers.run.launch import own_endpoints, own_records
from producers.run.options import (
    AgentOptions,
    LimitOptions,
    OutputOptions,
    RowOptions,
    RunOptions,
)
from producers.run.plan import make_plan
from producers.run.sandbox_options import SandboxOptions
from producers.run.selection import select
from producers.run.words import options_in
from producers.source import Producer

_GROUPS: dict[str, type[Options]] = {
    "rows": RowOptions,
    "agent": AgentOptions,
    "sandbox": SandboxOptions,
    "limits": LimitOptions,
}
"""Groups of a producer's flags that one job can have."""


@dataclass(frozen=True, slots=True)
class SingleJob:
    """A job that nobody has enqueued."""

    job: TrajectoryJob
    row: dict[str, Any]
    definition: dict[str, Any] | None
    """The program of `--agent command`, which the job names by its hash."""
    settings: dict[str, str]
    """Environment variables with which a worker of this job would start."""


def single_job(env: str, profile: str, words: Sequence[str]) -> SingleJob:
    """The job that the first selected row gives.

    Args:
        env: an env's name; the producer of that name says how its rows are read.
        profile: the sandbox profile.
        words: flags of that producer about rows, agent, sandbox and limits.

    Raises:
        ConfigurationError: a flag is unknown or wrong; the message has the fix.
        InputError: there is no such row, or it is unusable.
    """
    producer = producer_of(env)
    options = options_in(
        words,
        _GROUPS,
        producer,
        command="hermes-queue play",
        run=RunOptions(env=env, profile=profile),
        output=OutputOptions(),
    )
    options = replace(options, rows=replace(options.rows, items=1))
    settings = {
        **options.sandbox.worker_settings(),
        **own_endpoints(",".join(options.agent.base_url) or None),
    }
    loaded = load_env(env)
    plan = make_plan(producer, loaded, options)
    options.sandbox.check_profile(profile)
    rows = options.rows
    if (rows.dataset or producer.dataset) == BUNDLED and not producer.has_rows():
        raise ConfigurationError(f"--env {env}: brings no rows; name a file of them with --dataset")
    dataset = producer.dataset_of(rows.dataset, rows.split)
    selection = select(producer, loaded, dataset, options, plan.misfit_for(loaded))
    plan.check(selection)
    job = next(plan.jobs(selection, lambda _: True))
    return SingleJob(
        job=job,
        row=selection.items[0].item(),
        definition=plan.program.definition.compact() if plan.program else None,
        settings=settings | own_records(plan.agent),
    )


def producer_of(env: str) -> Producer:
    """The producer that has the env's name, else one that takes rows as they are."""
    if env in extensions.own("producer") or env in extensions.known("producer"):
        producer: Producer = extensions.load("producer", env)
        return producer
    return Producer(name="play", env=env, description="")
