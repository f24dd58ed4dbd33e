"""`hermes-queue tasks validate`: tasks in the Harbor format, before anybody trains on them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

import click

from hermes_queue.errors import EXIT_INTERRUPTED, EXIT_USAGE, TrajectoryFailure
from hermes_queue.installation import check_installation
from hermes_queue.settings import check_environment
from hermes_queue.terminal.output import echo

_VALIDATE = """Find out which tasks can be trusted on this machine; no Redis, no worker.

A task can be broken, already done, or give its reward to a cheat, and a backend may not be able to
run it at all: links rot, images differ. So each task is run here by its own solution (oracle), by
an agent that does nothing (nop), and by every known way to cheat (tamper), in the strictest
grading mode in which the solution scores 1. Producers then run only what is valid:

\b
hermes-queue tasks validate tasks/ --sandbox docker --slots 4 --out tb.jsonl
python -m producers.harbor --dataset tasks/ --validated tb.jsonl --agent openai --model MODEL

DATASET is a folder of tasks, registry.json#NAME, or rows that hold tasks; without it, the tasks
that come with hermes-queue. Verdicts:

\b
valid         oracle 1, nop 0, every tamper 0
no_oracle     no solution; the rest is as it should be (producers: --allow-no-oracle)
oracle_fails  the solution does not score 1 in any grading mode
nop_passes    there is a reward for doing nothing
forgeable     a way to cheat gives a reward; `forged` names it
flaky         the same attempt scored differently (needs --repeat 2 or more)
failed        something else failed, e.g. a build; the next validation tries again

The file has one line of JSON per task: digests of task and image, mode, all scores, seconds. It is
for one backend. A task is written as soon as it is done: after Ctrl-C, the same command goes on
with the rest. FLAG can be further flags of `python -m producers.harbor` about rows, sandbox and
limits, e.g. --instance-id ID or --items 20.

Exits with 0 if all tasks are valid (or no_oracle), with 1 if one is not, with 2 if one failed or a
flag is wrong, with 3 if this machine cannot isolate slots, and with 130 after Ctrl-C.
"""


@click.command(
    help=_VALIDATE,
    context_settings={"ignore_unknown_options": True},
)
@click.option(
    "--sandbox", metavar="NAME", help="Sandbox backend. Default: the setting, else local."
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Run oracle and nop so often.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, 1000),
    default=2,
    show_default=True,
    help="Most attempts at the same time.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file of the validation.  [default: validated-BACKEND.jsonl]",
)
@click.option(
    "--all-modes", is_flag=True, help="Also measure grading modes laxer than the one that decides."
)
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[DATASET] [FLAG]...")
def validate(
    sandbox: str | None,
    repeat: int,
    slots: int,
    out: Path | None,
    all_modes: bool,
    more: tuple[str, ...],
) -> None:
    """Implements the command; its help is `_VALIDATE`."""
    words = list(more)
    if words and not words[0].startswith("-"):
        words.insert(0, "--dataset")
    if not {"--items", "--instance-id"} & {word.partition("=")[0] for word in words}:
        words += ["--items", "all"]
    words += ["--sandbox", sandbox] if sandbox else []
    signal.signal(signal.SIGTERM, _end)
    check_installation()
    check_environment(sandbox)
    try:
        from hermes_plugins.harbor.sources.chosen import chosen_tasks  # slow: not for `--help`

        chosen = chosen_tasks(words)
        for line in chosen.skipped:
            echo(line, err=True)
        os.environ.update(chosen.settings)
        from hermes_plugins.harbor.validation import session

        code = session.validate(chosen.tasks, out, slots=slots, repeat=repeat, all_modes=all_modes)
    except KeyboardInterrupt:
        echo("interrupted; the same command goes on with the rest", err=True)
        code = EXIT_INTERRUPTED
    except TrajectoryFailure as error:
        echo(f"error: {error}", err=True)
        code = EXIT_USAGE
    sys.exit(code)


def _end(number: int, frame: FrameType | None) -> None:
    """As Ctrl-C: slots are given back, and the file keeps what is done."""
    raise KeyboardInterrupt
