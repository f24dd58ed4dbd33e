"""`hermes-queue play`: one trajectory by hand, or an agent's while one watches."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

import click

from hermes_queue.errors import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    HermesQueueError,
    TrajectoryFailure,
)
from hermes_queue.installation import check_installation
from hermes_queue.settings import check_environment

_HELP = """Play one trajectory in this terminal; no Redis, no worker.

The same rollout as in a worker: the env's slot, tools, limits and grader. Without --agent you are
the agent. Lines are shell commands, `:submit` hands in, `:answer TEXT` answers, `:help` says the
rest. With --agent the turns of that agent are shown while it runs.

\b
hermes-queue play
hermes-queue play --env swe_smith --instance-id ID
hermes-queue play --env my_package.my_env:ENV --dataset rows.jsonl --offset 3
hermes-queue play --env swe_smith --agent oracle --record oracle.json
hermes-queue play --agent openai --model MODEL --base-url http://127.0.0.1:8000/v1
hermes-queue play --agent command --agent-param program=hermes-agent --model MODEL

Commands can also come from a file or a pipe; the end of the input ends the session.

\b
printf '%s\\n' ':calculator 6*7' ':answer \\boxed{42}' | hermes-queue play

FLAG can be any further flag of the env's producer about rows, agent, sandbox and limits, e.g.
--max-turns 5 or --python 3.12; see `python -m producers.NAME --help`.

Exits with 0 if the score is 1, with 1 if it is lower or the session was ended without a verdict,
with 2 for a wrong flag or row and for any failure that is not the agent's, with 3 if this machine
cannot isolate slots, and with 130 after Ctrl-C outside of a command.
"""


@click.command(help=_HELP, context_settings={"ignore_unknown_options": True})
@click.option(
    "--env",
    default="gsm8k",
    show_default=True,
    metavar="NAME",
    help="Env: gsm8k, swe_smith, a plugin's name, or package.module:ENV.",
)
@click.option(
    "--instance-id",
    "--instance",
    metavar="ID",
    help="The row with this id. Default: the first one.",
)
@click.option(
    "--dataset",
    "--row",
    metavar="SOURCE",
    help="Rows: PATH.jsonl, PATH.parquet or a name on Hugging Face. Default: the env's bundled "
    "rows.",
)
@click.option("--offset", type=click.IntRange(min=0), metavar="N", help="Skip the first N rows.")
@click.option(
    "--agent",
    default="human",
    show_default=True,
    metavar="KIND",
    help="human: you. Or an agent of jobs: openai, command, oracle, ..., package.module:AGENT.",
)
@click.option("--model", metavar="NAME", help="Model of the agent.")
@click.option("--base-url", metavar="URL", help="Endpoint of the model.")
@click.option(
    "--agent-param",
    multiple=True,
    metavar="KEY=VALUE",
    help="Parameter of the agent; may be repeated.",
)
@click.option(
    "--sandbox",
    "--backend",
    metavar="NAME",
    help="Sandbox backend: local, modal, a plugin's name, or package.module:BACKEND. "
    "Default: the setting, else local.",
)
@click.option(
    "--profile",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Sandbox profile of the settings.",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the record (a `ScoredTrajectory`) to FILE, as one line of JSON.",
)
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[FLAG]...")
def play(
    env: str,
    profile: str,
    record: Path | None,
    sandbox: str | None,
    more: tuple[str, ...],
    agent_param: tuple[str, ...],
    **given: str | int | None,
) -> None:
    """Implements the command; its help is `_HELP`."""
    words = [*more, *(["--sandbox", sandbox] if sandbox else [])]
    words += [word for each in agent_param for word in ("--agent-param", each)]
    for name, value in given.items():
        if value is not None:
            words += ["--" + name.replace("_", "-"), str(value)]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    sys.path.insert(0, os.getcwd())  # for an env of one's own, as `python -m producers` has it
    check_installation()
    check_environment(sandbox)
    try:
        from producers.run.single import single_job  # slow, and `--help` does not need it

        single = single_job(env, profile, words)
        os.environ.update(single.settings)
        from hermes_plugins.play import session
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    try:
        code = session.play(single.job, single.row, definition=single.definition, record=record)
    except KeyboardInterrupt:  # before the attempt has begun; later the session handles it
        code = EXIT_INTERRUPTED
    except (HermesQueueError, TrajectoryFailure):
        raise
    except Exception:  # noqa: BLE001 - whatever it is, it is not the agent's
        traceback.print_exc()
        code = EXIT_USAGE
    sys.exit(code)


def _end(number: int, frame: FrameType | None) -> None:
    """End in an orderly way: the slot is given back, and the record written."""
    sys.exit(EXIT_INTERRUPTED)
