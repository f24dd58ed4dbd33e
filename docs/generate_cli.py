"""Render docs/cli.md from the commands themselves.

`make docs` writes the page; a test fails when it is not what this script renders. The tables are
made from the parsers, not from their `--help`, whose layout differs between Python versions.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

PAGE = Path(__file__).with_name("cli.md")
ROOT = PAGE.parents[1]

HEAD = """\
# Commands

Generated from the commands by `make docs`; edit their code, not this page. Each of them also has
`--help`.

The worker is Celery's own command, `celery -A hermes_queue worker`, with Celery's flags; of these
`-c` (trajectories at once) and `-Q` (lanes) matter here. What else it does is said by
[variables](configuration.md). `celery -A hermes_queue hermes` is `hermes-queue` under another name.

## Exit codes

Of producers and of `hermes-queue`; workers end with 2, 3, 4 and 5, too:

| code | meaning |
|---|---|
| 0 | everything was published |
| 1 | something was not, or a trajectory has no score |
| 2 | a flag, setting, row, file or the installation is wrong; the message names it and the fix |
| 3 | this machine cannot isolate slots |
| 4 | Redis cannot be reached, refuses us or is full |
| 5 | a worker that [stood still](operations.md#a-worker-is-stuck) ended itself: start it again |
| 130 | interrupted; nothing we started is left running |
"""


def cell(text: str) -> str:
    """Text for one cell of a table."""
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if flat.startswith("`") else flat.replace("<", "\\<")


def table(rows: list[tuple[str, str]]) -> list[str]:
    """A Markdown table of flags, or nothing for none."""
    if not rows:
        return []
    lines = [f"| {cell(name)} | {cell(text)} |" for name, text in rows]
    return ["", "| flag | |", "|---|---|", *lines]


# --- hermes-queue (click) ---------------------------------------------------------------


def walk(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below `group` by its full name, groups before their commands."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None:
            continue
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from walk(command, f"{path} {name}")


def option_row(option: click.Option, context: click.Context) -> tuple[str, str]:
    """One flag with what its `--help` says."""
    names, text = option.get_help_record(context) or (", ".join(option.opts), "")
    return f"`{names}`", text


def command_lines(name: str, command: click.Command) -> list[str]:
    """The section of one command."""
    context = click.Context(command, info_name=name)
    pieces = (parameter.get_usage_pieces(context) for parameter in command.get_params(context))
    arguments = " ".join(piece for found in pieces for piece in found)
    options = [
        option_row(parameter, context)
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and "--help" not in parameter.opts
    ]
    title = f"{name} {arguments}".strip()
    return [f"### `{title}`", "", *help_lines(command.help or ""), *table(options), ""]


def help_lines(text: str) -> list[str]:
    """The help text; what click is told not to wrap (by a line with a backspace) is code."""
    lines: list[str] = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        verbatim = part.startswith("\b\n")
        rows = [row.rstrip() for row in part.splitlines()[verbatim:]]
        language = "sh" if rows[0].startswith("hermes-queue ") else "text"
        lines += [f"```{language}", *rows, "```", ""] if verbatim else [*rows, ""]
    return lines[:-1]


def hermes_lines() -> list[str]:
    """All of `hermes-queue`."""
    from hermes_queue.cli import cli

    lines = ["## hermes-queue", "", (cli.help or "").strip(), ""]
    for name, command in walk(cli, "hermes-queue"):
        lines += command_lines(name, command)
    return lines


# --- python -m producers.<name> (argparse) ----------------------------------------------


def producer_modules() -> list[str]:
    """Names of the modules below `producers/` that are commands."""
    paths = sorted((ROOT / "producers").glob("*.py"))
    return [path.stem for path in paths if 'if __name__ == "__main__"' in path.read_text()]


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of `python -m producers.<name>`."""
    from producers.run.options import build_parser

    module = importlib.import_module(f"producers.{name}")
    own = getattr(module, "PRODUCER", None)
    parser: argparse.ArgumentParser = build_parser(own) if own else module.build_parser()
    return parser


def action_row(action: argparse.Action) -> tuple[str, str]:
    """One flag with what its `--help` says."""
    values = action.metavar or (
        "|".join(map(str, action.choices)) if action.choices else (action.dest or "").upper()
    )
    suffix = "" if action.nargs == 0 else f" {values}"
    text = (action.help or "") % {**vars(action), "prog": ""} if action.help else ""
    return f"`{', '.join(action.option_strings)}{suffix}`", text


def sections(parser: argparse.ArgumentParser) -> dict[str, list[tuple[str, str]]]:
    """The rows of each group of flags, by the group's title."""
    found: dict[str, list[tuple[str, str]]] = {}
    for group in parser._action_groups:
        rows = [
            action_row(action)
            for action in group._group_actions
            if action.option_strings and not isinstance(action, argparse._HelpAction)
        ]
        if rows:
            found[group.title or "options"] = rows
    return found


def producer_lines() -> list[str]:
    """The flags that all producers share once, then what each has of its own."""
    every = {name: sections(parser_of(name)) for name in producer_modules()}
    ordinary = [name for name in every if not name.startswith("make_")]
    first = every[ordinary[0]]
    shared = {
        title: [row for row in rows if all(row in every[n].get(title, ()) for n in ordinary)]
        for title, rows in first.items()
    }
    names = ", ".join(f"`producers.{name}`" for name in ordinary)
    lines = ["## Producers", "", f"`python -m producers.NAME`; {names} share these flags.", ""]
    for title, rows in shared.items():
        if rows:
            lines += [f"### {title[0].upper()}{title[1:]}", *table(rows), ""]
    for name, groups in every.items():
        description = parser_of(name).description or ""
        lines += [f"### `python -m producers.{name}`", "", *paragraph(description)]
        for title, rows in groups.items():
            own = [r for r in rows if r not in shared.get(title, ()) or name not in ordinary]
            lines += table(own)
        lines.append("")
    return lines


def paragraph(text: str) -> list[str]:
    """The text as one line."""
    return [" ".join(text.split())]


def render() -> str:
    """The whole page."""
    return "\n".join([HEAD, *hermes_lines(), *producer_lines()]).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
