"""`hermes-queue ...`: operate a deployment. Also `celery -A hermes_queue hermes ...`.

    __main__.py    `python -m hermes_queue.cli`
    budget.py      budgets that runs share
    dead.py        dead letters
    declared.py    groups of declared commands
    doctor/        checks of settings, host, Redis and endpoints
    exporter.py    metrics of the whole deployment
    groups.py      consumer groups of the results
    lanes.py       circuit breakers, manual pause
    limits.py      permits of model endpoints
    overview.py    the whole deployment at a glance
    plugins.py     extensions by name
    records/       recorded trajectories: `rescore`
    run.py         runs: show, pause, cancel, purge
    sandboxes.py   sandboxes at the provider
    sharing/       who gets how many of the slots
    sinks/         `sink ...`, `export`
    tasks/         what is remembered of tasks across runs
    watch/         `status` and `top`
    workers.py     live workers: pause, drain, resize

Commands are declared in `hermes_queue.core` and by plugins.
"""

from __future__ import annotations

import sys

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

from hermes_queue.cli.declared import DeclaredCommands

_EXTRAS = {
    "celery": "producer",
    "kombu": "producer",
    "rich": "producer",
    "openai": "worker",
    "aiohttp": "worker",
}
"""Library that a command imports -> extra that has it. Other commands name theirs themselves."""


class _Commands(DeclaredCommands):
    """Reports our errors as one line and an exit code."""

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

    from hermes_queue.settings import sections
    from hermes_queue.settings.section import wrong_setting

    if not isinstance(error, ValidationError):
        return None
    section = next((each for each in sections() if each.__name__ == error.title), None)
    return wrong_setting(section, error) if section else None


@click.group(name="hermes", cls=_Commands)
@click.version_option(package_name="hermes-queue", prog_name="hermes-queue")
def cli() -> None:
    """Operate a hermes-queue deployment (HERMES_QUEUE_REDIS_URL names its Redis)."""


def main() -> None:
    """Entry point of the `hermes-queue` script."""
    cli(prog_name="hermes-queue")
