"""Tasks in the Harbor format: folders, registries, and rows that hold whole tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from producers.base import Producer
from producers.run.dataset import BUNDLED, Dataset
from producers.run.flags import Options, flag, number, switch

if TYPE_CHECKING:
    from hermes_plugins.harbor.sources.inspect import Inspected
    from producers.run.options import ProducerOptions
    from producers.source import SelectedItem

_EXAMPLES = """\
Harbor:
  every task in a folder, with its own solution; each must score 1, and untouched 0:
    python -m producers.harbor --dataset tasks/ --items all --sandbox docker --expect-score 1
    python -m producers.harbor --dataset tasks/ --items all --sandbox docker --agent nop \\
        --expect-score 0
  one dataset of a registry, only the tasks that were found valid on this backend:
    python -m producers.harbor --dataset registry.json#terminal-bench@2.0 --items all \\
        --validated validated.jsonl --agent openai --model MODEL
  rows that hold tasks as archives:
    python -m producers.harbor --dataset tasks.parquet --items 100 --group-size 8 \\
        --agent openai --model MODEL

"""
_FIRST = ("csv-totals", "log-report", "sqlite-orders")
"""Bundled tasks that need no more than their base image."""
_inspected: dict[str, Inspected] = {}
"""Tasks that were read, by their place; see `inspect`."""


@dataclass(frozen=True)
class HarborOptions(Options):
    """Options that only these tasks have."""

    title: ClassVar[str] = "Harbor"
    validated: Path | None = flag(
        "use only tasks that this file of `hermes-queue tasks validate` calls valid, each in the "
        "grading mode that it names",
        type=Path,
        metavar="FILE",
    )
    allow_no_oracle: bool = switch(
        "with --validated: also tasks without a solution, of which only the rest could be checked"
    )
    evaluation: bool = switch(
        "mark all tasks as an evaluation, whose trajectories no dataset takes; tasks with a canary "
        "and known benchmarks are marked anyway"
    )
    embed: bool = switch(
        "put each task's folder into its job, for workers that cannot read it at its place"
    )
    timeout_factor: float = flag(
        "multiply the tasks' own time limits of the agent (default: 1)",
        default=1.0,
        type=number(0, above=True),
        metavar="X",
    )


def _prepare(row: dict[str, Any], options: HarborOptions) -> dict[str, Any]:
    """Read the task, and complete the row with what was found."""
    from hermes_plugins.harbor.sources.inspect import inspect
    from hermes_plugins.harbor.sources.rows import as_item

    found = inspect(as_item(row), embed=options.embed)
    item = found.item
    if options.evaluation:
        item["evaluation"] = True
    if options.validated is not None:
        from hermes_plugins.harbor.sources.validated import read_validated

        if known := read_validated(options.validated).get(item["digest"]):
            item["grading"] = known.mode or item["grading"]
    if found.agent_timeout_s is not None:
        item["time_limit_s"] = found.agent_timeout_s * options.timeout_factor
    _inspected[item["instance_id"]] = replace(found, item={})
    return item


def inspected(instance_id: str) -> Inspected:
    """What was found out about a task that was prepared in this process."""
    return _inspected[instance_id]


def _skip_reason(row: dict[str, Any], options: HarborOptions) -> str | None:
    if reason := _inspected[row["instance_id"]].unsupported:
        return reason
    if options.validated is None:
        return None
    from hermes_plugins.harbor.sources.validated import NO_ORACLE, VALID, read_validated

    known = read_validated(options.validated).get(row["digest"])
    if known is None:
        return "not in the file of --validated"
    if known.verdict == VALID or (known.verdict == NO_ORACLE and options.allow_no_oracle):
        return None
    return f"{known.verdict} (--validated)"


def _limits(row: dict[str, Any], options: ProducerOptions) -> Mapping[str, float]:
    from hermes_plugins.harbor.sources.inspect import OVERHEAD_S

    found = _inspected[row["instance_id"]]
    limits = {"setup_timeout_s": OVERHEAD_S}
    # The tests run twice if they give no reward.
    limits["verify_timeout_s"] = 2 * found.verifier_timeout_s + OVERHEAD_S
    if row["time_limit_s"] is not None:
        limits["agent_timeout_s"] = row["time_limit_s"]
        if options.agent.kind == "oracle":  # the whole solution is one call
            limits["tool_timeout_s"] = row["time_limit_s"]
    agent_s = limits.get("agent_timeout_s", 1800.0)
    further_s = (found.steps - 1) * (limits["setup_timeout_s"] + limits["verify_timeout_s"])
    limits["total_timeout_s"] = max(7200.0, 2 * (sum(limits.values()) + agent_s + further_s))
    return limits


def _provide(
    _: Sequence[SelectedItem], options: ProducerOptions, say: Callable[[str], None]
) -> None:
    if options.rows.dataset in (None, BUNDLED):
        from hermes_plugins.harbor.sources.base_image import provide_base

        provide_base(options.sandbox.backend, say)


def _open(name: str) -> Dataset | None:
    from hermes_plugins.harbor.sources.datasets import FolderDataset, open_tasks

    if name == BUNDLED:
        folder = Path(__file__).parent / "data"
        return FolderDataset(folder, _FIRST) if folder.is_dir() else None
    return open_tasks(name)


PRODUCER = Producer(
    name="harbor",
    env="harbor",
    options=HarborOptions,
    description="Tasks in the Harbor format (terminal-bench 2 and others), as trajectory jobs. "
    "--dataset also takes a folder of tasks, and registry.json#NAME.",
    prepare=_prepare,
    skip_reason=_skip_reason,
    open=_open,
    limits=_limits,
    provide=_provide,
    examples=_EXAMPLES,
)
