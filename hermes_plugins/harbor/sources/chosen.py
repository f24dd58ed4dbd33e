"""The tasks that `hermes-queue tasks validate` measures, with the jobs of their attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from envs.base import load_env
from hermes_plugins.harbor.producer import PRODUCER, inspected
from hermes_plugins.harbor.validation.measured import TaskToValidate
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import AgentSpec, TrajectoryJob
from producers.run.options import build_parser, parse
from producers.run.plan import make_plan
from producers.run.sandbox_options import chosen_backend
from producers.run.selection import select


@dataclass(frozen=True, slots=True)
class ChosenTasks:
    """What a command line selects."""

    tasks: Sequence[TaskToValidate]
    skipped: Sequence[str]
    """Lines for people: which tasks cannot be run, and why."""
    settings: Mapping[str, str]
    """Environment variables that the flags set."""


def chosen_tasks(words: Sequence[str]) -> ChosenTasks:
    """The tasks that flags of the producer `harbor` select.

    Raises:
        ConfigurationError: a flag is wrong; the message has the fix.
        InputError: the dataset or a task cannot be used.
    """
    words = ["--agent", "oracle", *words]
    parser = build_parser(PRODUCER, chosen_backend(words))
    parser.error = _refuse  # type: ignore[method-assign]  # it would print a page and exit
    parser.parse_args(words)
    options = parse(PRODUCER, words)
    settings = options.sandbox.worker_settings()
    env = load_env(PRODUCER.env)
    plan = make_plan(PRODUCER, env, options)
    options.sandbox.check_profile(options.run.profile)
    dataset = PRODUCER.dataset_of(options.rows.dataset, options.rows.split)
    selection = select(PRODUCER, env, dataset, options)
    jobs = plan.jobs(selection, lambda _: True)
    tasks = [
        _task(job, selected.item(), list(env.tamper(env.Item.model_validate(selected.item()))))
        for job, selected in zip(jobs, selection.items, strict=True)
    ]
    return ChosenTasks(tasks, selection.skip_lines(), settings)


def _task(job: TrajectoryJob, row: dict[str, object], ways: Sequence[str]) -> TaskToValidate:
    found = inspected(str(row["instance_id"]))
    return TaskToValidate(
        row=row,
        oracle=job if found.has_solution else None,
        nop=_by(job, AgentSpec(kind="nop")),
        tampers={way: _by(job, AgentSpec(kind="tamper", params={"case": way})) for way in ways},
        modes=found.modes,
    )


def _by(job: TrajectoryJob, agent: AgentSpec) -> TrajectoryJob:
    return job.model_copy(update={"agent": agent})


def _refuse(message: str) -> NoReturn:
    raise ConfigurationError(f"{message}; see `hermes-queue tasks validate --help`")
