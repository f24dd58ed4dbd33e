"""Turns options and selected items into jobs; the same options and run id give the same jobs.

The judge of `--judge FILE` is read here, too.
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from envs.base import Environment
from hermes_queue import extensions
from hermes_queue.agent.registry import check_params
from hermes_queue.broker.submission import RUN_ID_MAX, new_run_id, own_version, run_config
from hermes_queue.errors import ConfigurationError, InputError
from hermes_queue.models import (
    AgentSpec,
    GroupPolicy,
    JudgeSpec,
    Limits,
    Provenance,
    TrajectoryJob,
)
from hermes_queue.tools import load_tool
from hermes_queue.wire.names import Name, check_lane, check_run_id, make_ids
from hermes_queue.wire.provenance import current_traceparent
from producers.run.options import DEFAULT_REFILLS, AgentOptions, ProducerOptions
from producers.run.programs import ChosenProgram, Misfit, choose_program, require_program
from producers.run.selection import SelectedItems
from producers.source import Producer, SelectedItem

_JUDGE_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class Plan:
    """Properties that the jobs of a run share."""

    producer: str
    options: ProducerOptions
    run_id: str
    agent: AgentSpec
    limits: Limits
    provenance: Provenance
    group_policy: GroupPolicy
    """The policy apart from `max_refills` and `max_requeues`, whose defaults depend on the size."""
    program: ChosenProgram | None = None
    """Of `--agent command`."""
    judge: JudgeSpec | None = None
    """Of `--judge`."""

    def size_of(self, item: SelectedItem) -> int:
        """Number of measured samples that a group of `item` needs."""
        return self.options.groups.group_size or len(self._cases(item)) or 1

    def jobs(
        self, selection: SelectedItems, keep: Callable[[str], bool]
    ) -> Iterator[TrajectoryJob]:
        """All jobs in order, without the groups for which `keep(group_id)` is false."""
        for selected in selection.items:
            group_id, _ = make_ids(self.run_id, selected.key, 0)
            if keep(group_id):
                yield from self.jobs_of(selected)

    def items(self, selected: Iterable[SelectedItem]) -> dict[str, bytes]:
        """The compressed rows, and the program, that the jobs of these items name by hash."""
        program = self.program.packed.items if self.program else {}
        return program | {each.sha256: each.packed for each in selected if each.sha256}

    def config(self, dataset: str) -> dict[str, Any]:
        """Properties that all producers with one run id must agree on.

        They may differ in: which and how many rows, --priority, --lane, --concurrency,
        --base-url, --policy-version, and the output flags.
        """
        options = self.options
        return {
            "producer": self.producer,
            "dataset": dataset,
            "tamper_case": options.agent.tamper_case,
            "max_refills": options.groups.max_refills,
            "max_requeues": options.staleness.max_requeues,
            **run_config(
                options.run.env,
                agent=self.agent,
                group_policy=self.group_policy,
                limits=self.limits,
                profile=options.run.profile,
                judge=self.judge,
            ),
            "group_size": options.groups.group_size,
        }

    def group_sizes(self, selection: SelectedItems) -> dict[str, int]:
        """Number of trajectories in each published group, by group id."""
        return {
            make_ids(self.run_id, selected.key, 0)[0]: self.size_of(selected)
            for selected in selection.items
        }

    def misfit_for(self, env: Environment[Any]) -> Misfit | None:
        """Says why the run's program cannot work on an item; None without a program."""
        if self.program is None:
            return None
        return partial(self.program.misfit, env, self.options.run.profile)

    def check(self, selection: SelectedItems) -> None:
        """Check that every item has the requested tamper cases.

        Raises:
            ConfigurationError: names the item and its tamper cases.
        """
        if self.agent.kind != "tamper":
            return
        case = self.options.agent.tamper_case
        for selected in selection.items:
            if not selected.tamper_cases:
                raise ConfigurationError(
                    f"--agent tamper: the env {self.options.run.env!r} has no tamper cases "
                    f"for {selected.instance_id!r}"
                )
            if case and case not in selected.tamper_cases:
                raise ConfigurationError(
                    f"--tamper-case {case}: {selected.instance_id!r} has no such case; "
                    f"known: {', '.join(selected.tamper_cases)}"
                )

    def _policy(self, size: int) -> GroupPolicy:
        refills, requeues = self.options.groups.max_refills, self.options.staleness.max_requeues
        if refills is None:
            refills = DEFAULT_REFILLS if size > 1 else 0
        if requeues is None:
            requeues = size if self.group_policy.on_stale == "requeue" else 0
        update = {"max_refills": refills, "max_requeues": requeues}
        return self.group_policy.model_copy(update=update)

    def _cases(self, item: SelectedItem) -> tuple[str, ...]:
        case = self.options.agent.tamper_case
        return (case,) if case else item.tamper_cases

    def _limits_of(self, selected: SelectedItem) -> Limits:
        """The run's limits; where no flag sets one, the item's own."""
        if not selected.limits:
            return self.limits
        return Limits(**{**selected.limits, **self.options.limits.given()})

    def jobs_of(self, selected: SelectedItem) -> Iterator[TrajectoryJob]:
        """The jobs of one item, which are one group."""
        run = self.options.run
        cases, size = self._cases(selected), self.size_of(selected)
        group_id, trajectory_id = make_ids(self.run_id, selected.key, 0)
        first = TrajectoryJob(
            run_id=self.run_id,
            group_id=group_id,
            trajectory_id=trajectory_id,
            sample_index=0,
            group_size=size,
            env=run.env,
            instance_id=selected.instance_id,
            item=None if selected.sha256 else selected.item(),
            item_sha256=selected.sha256 or None,
            agent=self.agent,
            limits=self._limits_of(selected),
            profile=run.profile,
            lane=run.lane,
            priority=run.priority,
            policy_version=run.policy_version,
            producer=self.provenance,
            group_policy=self._policy(size),
            judge=self.judge,
            needs=selected.needs,
        )
        for index in range(size + self.group_policy.extra_samples):
            job = first.sample(index)
            if cases:
                params = {**self.agent.params, "case": cases[index % len(cases)]}
                agent = self.agent.model_copy(update={"params": params})
                job = job.model_copy(update={"agent": agent})
            yield job


def make_plan(producer: Producer, env: Environment[Any], options: ProducerOptions) -> Plan:
    """The plan that the options describe.

    Raises:
        ConfigurationError: names the flag and the fix.
    """
    for name in env.tools:
        load_tool(name)
    run, groups, stale = options.run, options.groups, options.staleness
    if stale.max_policy_lag is None and stale.on_stale != "label":
        raise ConfigurationError("--on-stale: has no effect without --max-policy-lag N")
    if stale.max_requeues is not None and stale.on_stale != "requeue":
        raise ConfigurationError("--max-requeues: needs --on-stale requeue")
    _check_name("--lane", run.lane)
    _check_name("--profile", run.profile)
    run_id = run.run_id or new_run_id(producer.name)
    _check_name("--run-id", run_id, RUN_ID_MAX)
    agent = _agent(options.agent)
    program = None
    if agent.kind == "command":
        program = choose_program(agent.params, agent.model, env)
        params = {**agent.params, "program": program.packed.reference}
        agent = agent.model_copy(update={"params": params})
    return Plan(
        producer=producer.name,
        options=options,
        run_id=run_id,
        agent=agent,
        program=program,
        judge=read_judge(options.agent.judge) if options.agent.judge else None,
        limits=Limits(**options.limits.given()),
        provenance=Provenance(
            producer=f"producers.{producer.name}",
            version=own_version(),
            git=_commit(),
            traceparent=current_traceparent(),
        ),
        group_policy=GroupPolicy(
            extra_samples=groups.extra_samples,
            drop_zero_variance=groups.drop_zero_variance,
            stop_after_equal=groups.stop_after_equal,
            on_incomplete=groups.on_incomplete,
            max_policy_lag=stale.max_policy_lag,
            on_stale=stale.on_stale,
        ),
    )


def _agent(options: AgentOptions) -> AgentSpec:
    kind = options.kind
    if kind == "command":
        require_program(dict(options.params))
    # Bundled agents are loaded only to check their parameters: openai takes a second.
    if options.params or kind == "command" or kind not in extensions.own("agent"):
        check_params(kind, dict(options.params))
    if kind in ("openai", "command") and not options.model:
        raise ConfigurationError(f"--agent {kind}: name the model with --model NAME")
    if options.tamper_case and kind != "tamper":
        raise ConfigurationError(f"--tamper-case: needs --agent tamper, not {kind}")
    for url in options.base_url:
        if not url.lower().startswith(("http://", "https://")):
            raise ConfigurationError(f"--base-url {url}: must begin with http:// or https://")
    sampling = dict(options.sampling)
    if options.temperature is not None:
        sampling["temperature"] = options.temperature
    return AgentSpec(
        kind=kind,
        model=options.model,
        base_url=",".join(options.base_url) or None,
        sampling=sampling,
        params=dict(options.params),
    )


def _check_name(flag: str, value: str, max_length: int = 256) -> None:
    try:
        TypeAdapter(Name).validate_python(value)
    except ValidationError as error:
        raise ConfigurationError(
            f"{flag} {value!r}: use letters, digits and . _ : / - and begin with a letter or digit"
        ) from error
    if "/" in value and flag == "--run-id":
        raise ConfigurationError(f"{flag} {value!r}: files are named after it; remove the /")
    if len(value) > max_length:
        raise ConfigurationError(
            f"{flag}: has {len(value)} characters; at most {max_length} are allowed"
        )
    try:
        if own_rule := {"--run-id": check_run_id, "--lane": check_lane}.get(flag):
            own_rule(value)
    except ValueError as error:
        raise ConfigurationError(f"{flag}: {error}") from error


def _commit() -> str | None:
    """The commit of the checkout that we run from; None without one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:  # no outside input
        answer = subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=10)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.strip()


def read_judge(path: Path) -> JudgeSpec:
    """The judge that a file describes, TOML or (named `.json`) JSON.

    Raises:
        InputError: it cannot be read or describes no judge; names the file and the key.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_JUDGE_BYTES_MAX + 1).decode()
        if len(text) > _JUDGE_BYTES_MAX:
            raise InputError(f"--judge {path}: has more than {_JUDGE_BYTES_MAX:,} bytes")
        value = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return JudgeSpec.model_validate(value)
    except OSError as error:
        raise InputError(f"--judge {path}: cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise InputError(f"--judge {path}: {field or 'the file'}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"--judge {path}: {error}") from error
