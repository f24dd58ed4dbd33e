"""`hermes-queue ...`: operate a deployment. Also `celery -A hermes_queue hermes ...`.

    __main__.py    `python -m hermes_queue.cli`
    dead.py        dead letters
    doctor/        checks of settings, host, Redis and endpoints
    exporter.py    metrics of the whole deployment
    goodput/       `goodput`, `budget`, `report`
    groups.py      consumer groups of the results
    images/        images of tasks on this host
    lanes.py       circuit breakers, manual pause
    limits.py      permits of model endpoints
    mixing/        producers of many sources
    overview.py    the whole deployment at a glance
    play.py        one trajectory in this terminal
    plugins.py     extensions by name
    records/       recorded trajectories: `show`, `regrade`, `rescore`
    run.py         runs: show, pause, cancel, purge
    sandboxes.py   sandboxes at the provider
    sharing/       who gets how many of the slots
    sinks/         `sink ...`, `export`, `atropos-server`
    tasks/         validation of tasks, the memory of tasks
    view.py        pages in a browser
    watch/         `status` and `top`
    workers.py     live workers: pause, drain, resize

A command's module is imported when that command runs, so that `--help` and short commands start
fast.
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module

from hermes_queue.errors import (
    EXIT_INTERRUPTED,
    EXIT_ISOLATION,
    EXIT_USAGE,
    HermesQueueError,
    IsolationUnavailable,
)
from hermes_queue.installation import find_own_packages

try:
    import click
except ModuleNotFoundError:  # the package without extras, which is for readers of results
    sys.stderr.write("error: commands need click: pip install 'hermes-queue[producer]'\n")
    sys.exit(EXIT_USAGE)

COMMANDS = {
    "atropos-server": (
        "sinks.atropos_server",
        "Hand out finished groups to a trainer that speaks the Atropos API.",
    ),
    "budget": (
        "goodput.budget",
        "Limit the money, tokens and slot-hours of an env, a team or a model.",
    ),
    "dead": ("dead", "List, retry and drop jobs and groups that need a person."),
    "doctor": ("doctor.command", "Check settings, Redis, isolation, disks and model endpoints."),
    "export": ("sinks.export", "Write a dataset of all groups that are finished by now."),
    "exporter": ("exporter", "Serve metrics of the whole deployment to Prometheus."),
    "goodput": (
        "goodput.command",
        "Show scored trajectories per slot-hour and dollar, and where the rest of the time went.",
    ),
    "groups": ("groups", "List the consumer groups of the results; rewind and remove them."),
    "images": ("images.command", "Pull, build, import and prune the images of tasks on this host."),
    "lanes": ("lanes", "Show which lanes are paused, and why; pause and resume them."),
    "limits": ("limits", "Show the call limits of model endpoints, and how many calls wait."),
    "mix": ("mixing.command", "Enqueue rows of many sources by weights; change them, show them."),
    "play": ("play", "Play one trajectory by hand, or watch an agent; no Redis needed."),
    "plugins": (
        "plugins",
        "List envs, tools, agents, sinks and other extensions, including those of plugins.",
    ),
    "regrade": (
        "records.regrade",
        "Run today's verifier on recorded patches and answers.",
    ),
    "report": (
        "goodput.report",
        "Report on a run, in the terminal or as one HTML file with plots.",
    ),
    "rescore": (
        "records.rescore",
        "Recompute recorded logprobs on the server.",
    ),
    "run": ("run", "List the runs of this deployment; pause, resume, cancel and purge them."),
    "sandboxes": (
        "sandboxes",
        "List sandboxes of this deployment, also at the provider; end them.",
    ),
    "shares": ("sharing.shares", "Show and set who gets how many of the slots."),
    "show": (
        "records.show",
        "Show one trajectory, or a group with its samples side by side, in this terminal.",
    ),
    "sink": ("sinks.sink", "Read results continuously into a dataset or a trainer."),
    "status": ("watch.status", "Show the deployment on one screen, or the counters of a run."),
    "tasks": (
        "tasks.command",
        "Validate tasks; list, show, export and import what is remembered of them across runs.",
    ),
    "top": ("watch.status", "Watch runs, lanes, workers, failures and the slowest trajectories."),
    "view": ("view", "Serve pages about runs, groups and trajectories to a browser."),
    "workers": ("workers", "List live workers; pause, resume, drain and resize them."),
}
"""Name -> (module below this package that defines the command under that name, short help)."""

_EXTRAS = {
    "celery": "producer",
    "kombu": "producer",
    "rich": "producer",
    "openai": "worker",
    "aiohttp": "worker",
}
"""Library that a command imports -> extra that has it. Other commands name theirs themselves."""


class _Commands(click.Group):
    """Imports a command on first use; reports our errors as one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"{__name__}.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it; an unknown name is answered with those that it is close to."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            close = get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, purpose) for name, (_, purpose) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            find_own_packages()
            return super().invoke(ctx)
        except (IsolationUnavailable, HermesQueueError) as error:
            _say(f"error: {error}")
            ctx.exit(getattr(error, "exit_code", EXIT_ISOLATION))
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in _EXTRAS:
                raise
            needed = f"this command needs the package {missing}"
            _say(f"error: {needed}: pip install 'hermes-queue[{_EXTRAS[missing]}]'")
            ctx.exit(EXIT_USAGE)
        except ValueError as error:
            problem = _wrong_setting(error)
            if problem is None:
                raise
            _say(f"error: {problem}")
            ctx.exit(EXIT_USAGE)
        except KeyboardInterrupt:
            _say("interrupted")
            ctx.exit(EXIT_INTERRUPTED)


def _say(text: str) -> None:
    from hermes_queue.terminal.output import echo  # after the errors of what it imports

    echo(text, err=True)


def _wrong_setting(error: ValueError) -> Exception | None:
    """What a section says of the environment, which commands read where they use it."""
    from pydantic import ValidationError

    from hermes_queue.settings import SECTIONS
    from hermes_queue.settings.section import wrong_setting

    if not isinstance(error, ValidationError):
        return None
    section = next((each for each in SECTIONS if each.__name__ == error.title), None)
    return wrong_setting(section, error) if section else None


@click.group(name="hermes", cls=_Commands)
@click.version_option(package_name="hermes-queue", prog_name="hermes-queue")
def cli() -> None:
    """Operate a hermes-queue deployment (HERMES_QUEUE_REDIS_URL names its Redis)."""


def main() -> None:
    """Entry point of the `hermes-queue` script."""
    cli(prog_name="hermes-queue")
