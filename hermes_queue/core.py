"""What the core itself adds, declared as a plugin does it, and all declarations together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from hermes_queue.plugins import Command, Plugin, installed, load_target

CORE = Plugin(
    name="core",
    purpose="The queue, its workers and producers, and all that the README promises.",
    extensions={
        "env": {
            "gsm8k": "envs.gsm8k:ENV",
            "prompts": "envs.prompts:ENV",
            "swe_smith": "envs.swe_smith:ENV",
        },
        "tool": {
            "calculator": "hermes_queue.tools.calculator:TOOL",
            "patch": "hermes_queue.tools.patch:TOOL",
            "process": "hermes_queue.tools.process:TOOL",
            "read_file": "hermes_queue.tools.read_file:TOOL",
            "search_files": "hermes_queue.tools.search_files:TOOL",
            "submit": "hermes_queue.tools.submit:TOOL",
            "terminal": "hermes_queue.tools.terminal:TOOL",
            "write_file": "hermes_queue.tools.write_file:TOOL",
        },
        "agent": {
            "command": "hermes_queue.agent.kinds.command:AGENT",
            "garbage": "hermes_queue.agent.kinds.garbage:AGENT",
            "nop": "hermes_queue.agent.kinds.nop:AGENT",
            "openai": "hermes_queue.agent.kinds.openai:AGENT",
            "oracle": "hermes_queue.agent.kinds.oracle:AGENT",
            "recorded": "hermes_queue.agent.kinds.recorded:AGENT",
            "replay": "hermes_queue.agent.kinds.replay:AGENT",
            "slow": "hermes_queue.agent.kinds.slow:AGENT",
            "tamper": "hermes_queue.agent.kinds.tamper:AGENT",
        },
        "sink": {
            "jsonl": "hermes_queue.sinks.datasets.jsonl:FORMAT",
            "parquet": "hermes_queue.sinks.datasets.parquet:FORMAT",
            "sharegpt": "hermes_queue.sinks.datasets.sharegpt:FORMAT",
        },
        "backend": {
            "local": "hermes_queue.sandbox.local:BACKEND",
            "modal": "hermes_queue.sandbox.modal:BACKEND",
        },
        "producer": {
            "gsm8k": "producers.gsm8k:PRODUCER",
            "prompts": "producers.prompts:PRODUCER",
            "swe_smith": "producers.swe_smith:PRODUCER",
        },
        "parser": {
            "hermes": "hermes_queue.agent.parsers.hermes:PARSER",
            "llama3_json": "hermes_queue.agent.parsers.llama3_json:PARSER",
            "mistral": "hermes_queue.agent.parsers.mistral:PARSER",
            "qwen3_coder": "hermes_queue.agent.parsers.qwen3_coder:PARSER",
        },
        "token_server": {
            "sglang": "hermes_queue.agent.tokens.servers.sglang:SERVER",
            "vllm": "hermes_queue.agent.tokens.servers.vllm:SERVER",
        },
    },
    commands={
        "budget": Command(
            "hermes_queue.cli.budget:budget",
            "Limit the money, tokens and slot-hours of an env, a team or a model.",
        ),
        "dead": Command(
            "hermes_queue.cli.dead:dead",
            "List, retry and drop jobs and groups that need a person.",
        ),
        "doctor": Command(
            "hermes_queue.cli.doctor.command:doctor",
            "Check settings, Redis, isolation, disks and model endpoints.",
        ),
        "export": Command(
            "hermes_queue.cli.sinks.export:export",
            "Write a dataset of all groups that are finished by now.",
        ),
        "exporter": Command(
            "hermes_queue.cli.exporter:exporter",
            "Serve metrics of the whole deployment to Prometheus.",
        ),
        "groups": Command(
            "hermes_queue.cli.groups:groups",
            "List the consumer groups of the results; rewind and remove them.",
        ),
        "lanes": Command(
            "hermes_queue.cli.lanes:lanes",
            "Show which lanes are paused, and why; pause and resume them.",
        ),
        "limits": Command(
            "hermes_queue.cli.limits:limits",
            "Show the call limits of model endpoints, and how many calls wait.",
        ),
        "plugins": Command(
            "hermes_queue.cli.plugins:plugins",
            "List envs, tools, agents, sinks and other extensions, including those of plugins.",
        ),
        "rescore": Command(
            "hermes_queue.cli.records.rescore:rescore",
            "Recompute recorded logprobs on the server.",
        ),
        "run": Command(
            "hermes_queue.cli.run:run",
            "List the runs of this deployment; pause, resume, cancel and purge them.",
        ),
        "sandboxes": Command(
            "hermes_queue.cli.sandboxes:sandboxes",
            "List sandboxes of this deployment, also at the provider; end them.",
        ),
        "shares": Command(
            "hermes_queue.cli.sharing.shares:shares",
            "Show and set who gets how many of the slots.",
        ),
        "sink": Command(
            "hermes_queue.cli.sinks.sink:sink",
            "Read results continuously into a dataset or a trainer.",
        ),
        "status": Command(
            "hermes_queue.cli.watch.status:status",
            "Show the deployment on one screen, or the counters of a run.",
        ),
        "tasks export": Command(
            "hermes_queue.cli.tasks.carried:export_tasks",
            "Write what is remembered of tasks as JSON lines.",
        ),
        "tasks forget": Command(
            "hermes_queue.cli.tasks.remembered:forget", "Forget what is remembered of tasks."
        ),
        "tasks import": Command(
            "hermes_queue.cli.tasks.carried:import_tasks", "Read what `tasks export` wrote."
        ),
        "tasks list": Command(
            "hermes_queue.cli.tasks.remembered:list_tasks",
            "List what is remembered of tasks across runs.",
        ),
        "tasks show": Command(
            "hermes_queue.cli.tasks.remembered:show", "Show what is remembered of one task."
        ),
        "top": Command(
            "hermes_queue.cli.watch.status:top",
            "Watch runs, lanes, workers, failures and the slowest trajectories.",
        ),
        "workers": Command(
            "hermes_queue.cli.workers:workers",
            "List live workers; pause, resume, drain and resize them.",
        ),
    },
)
"""Commands are imported when they run, so that `--help` and short commands start fast."""


def declared() -> Iterator[Plugin]:
    """Declarations that can be used: the core's, then those of `installed`."""
    yield CORE
    for each in installed():
        if each.plugin:
            yield each.plugin


def added(to: Literal["settings", "keys", "after", "run_hints", "exported"]) -> Iterator[Any]:
    """The objects that all declarations name in one of their fields, each imported in its turn.

    Raises:
        ConfigurationError: one of them cannot be imported.
    """
    for plugin in declared():
        yield from map(load_target, getattr(plugin, to))
