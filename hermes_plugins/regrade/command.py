"""`hermes-queue regrade FILE|RUN`: today's verifier on recorded work."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

_HELP = """Run today's verifier on recorded patches and answers; no model is called.

SOURCE is a JSON lines file of records (of a producer's --out, or `hermes-queue export --format
jsonl`), or the id of a run whose results are in the stream or the archive. Every measured record
becomes a job of another run, in which workers set up a fresh slot, put the recorded work back and
verify it with the row that --dataset has today. Its record has the new score and names the old one;
the old record stays as it is. Nothing can be trained on the new records: they are marked as an
evaluation. Without HERMES_QUEUE_REDIS_URL everything runs on this machine.

\b
hermes-queue regrade results/run1.jsonl
hermes-queue regrade run1 --dataset rows.jsonl --json
hermes-queue regrade chat.jsonl --env gsm8k --expect-same
hermes-queue regrade run1 --sample 200 --run-id flakes-1

The same command again regrades only what is new: other records, rows that have changed, or another
version of the env. FLAG can be any further flag of the env's producer about sandbox and limits,
e.g. --verify-timeout 300; see `python -m producers.NAME --help`.

\b
exit codes: 0 every measured record has a new score | 1 some have none (their work is not recorded,
  or the infrastructure failed), or --expect-same and one has changed | 2 wrong flag, setting or
  input | 3 this machine cannot isolate slots | 4 Redis | 130 interrupted
"""


@click.command(help=_HELP, context_settings={"ignore_unknown_options": True})
@click.argument("source")
@click.option(
    "--env",
    metavar="NAME",
    help="Regrade only records of this env. One that is neither bundled nor a plugin has to be "
    "named: records may be anybody's, and choose no code.",
)
@click.option(
    "--instance-id", multiple=True, metavar="ID", help="Regrade only this row; may be repeated."
)
@click.option(
    "--dataset",
    metavar="SOURCE",
    help="Today's rows: PATH.jsonl, PATH.parquet or a name on Hugging Face. Default: the env's "
    "bundled rows.",
)
@click.option("--split", help="Split of a Hugging Face dataset.")
@click.option(
    "--run-id",
    metavar="ID",
    help="Run of the new records.  [default: regrade-ENV-SOURCE]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PATH",
    help="JSON lines file to append the new records to.  [default: results/RUN-ID.jsonl]",
)
@click.option("--lane", default="train", show_default=True, help="Queue lane.")
@click.option(
    "--priority", type=click.IntRange(0, 9), default=5, show_default=True, help="0 is served first."
)
@click.option(
    "--profile",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Sandbox profile of the settings.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Concurrent verifications if everything runs on this machine.",
)
@click.option("--sandbox", metavar="NAME", help="Sandbox backend of a worker started here.")
@click.option(
    "--sample",
    type=click.IntRange(1),
    metavar="N",
    help="Regrade N of the records, chosen by chance; the same ones again with the same --run-id.",
)
@click.option("--expect-same", is_flag=True, help="Exit with 1 if a score has changed.")
@click.option("--dry-run", is_flag=True, help="Say what would be regraded; enqueue nothing.")
@click.option("--quiet", is_flag=True, help="Show neither progress nor comparison.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[FLAG]...")
def regrade(source: str, sandbox: str | None, more: tuple[str, ...], **flags: Any) -> None:
    """Implements the command; its help is `_HELP`."""
    words = [*more, *(["--sandbox", sandbox] if sandbox else [])]
    sys.path.insert(0, os.getcwd())  # for an env of one's own, as `python -m producers` has it
    from producers.command import run_command  # all that a producer needs

    interrupted = "interrupted; the same command goes on"
    code = run_command(lambda: _run(source, words, flags), interrupted=interrupted, backend=sandbox)
    sys.exit(code)


def _run(source: str, words: list[str], flags: dict[str, Any]) -> int:
    from hermes_plugins.regrade import run
    from producers.run import options

    request = run.RegradeRequest(
        source=source,
        env=flags["env"],
        instance_ids=frozenset(flags["instance_id"]),
        rows=options.RowOptions(dataset=flags["dataset"], split=flags["split"]),
        run=options.RunOptions(
            **{name: flags[name] for name in ("run_id", "lane", "priority", "profile")},
            concurrency=flags["concurrency"],
        ),
        output=options.OutputOptions(
            out=flags["out"],
            follow=True,
            dry_run=flags["dry_run"],
            json=flags["as_json"],
            quiet=flags["quiet"],
        ),
        expect_same=flags["expect_same"],
        sample=flags["sample"],
        more=words,
    )
    return run.regrade(request)
