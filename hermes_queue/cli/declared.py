"""Groups of commands that the core and plugins declare, each imported on first use."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from hermes_queue.core import declared
from hermes_queue.plugins import Command


class DeclaredCommands(click.Group):
    """The group of all commands that are declared with one word, besides its own."""

    prefix = ""
    """What the names of its commands begin with where they are declared."""

    def declared(self) -> dict[str, Command | None]:
        """Its declared commands by name, the core's and ours before those of others.

        None stands for a group: `tasks` of `tasks list` and `tasks validate`.
        """
        found: dict[str, Command | None] = {}
        for plugin in declared():
            for words, command in plugin.commands.items():
                if words.startswith(self.prefix):
                    name, _, rest = words.removeprefix(self.prefix).partition(" ")
                    found.setdefault(name, None if rest else command)
        return found

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, sorted."""
        return sorted({*self.declared(), *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, whose module is imported now."""
        if own := super().get_command(ctx, cmd_name):
            return own
        declared = self.declared()
        if cmd_name not in declared:
            return None
        found = declared[cmd_name]
        if found is None:
            return DeclaredSubcommands(cmd_name, help=f"Commands about {cmd_name}.")
        module, _, attribute = found.target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
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
        """Write each name with its purpose, without importing what is declared."""
        purposes = {
            name: command.get_short_help_str(limit=200)
            for name, command in self.commands.items()
            if not command.hidden
        }
        for name, command in self.declared().items():
            below = [] if command else DeclaredSubcommands(name).list_commands(ctx)
            purpose = command.purpose if command else f"About {name}: {', '.join(below)}."
            purposes.setdefault(name, purpose)
        with formatter.section("Commands"):
            formatter.write_dl(sorted(purposes.items()))


class DeclaredSubcommands(DeclaredCommands):
    """A group below `hermes-queue`: `tasks validate` is declared for the group `tasks`."""

    def __init__(self, name: str | None = None, **given: Any) -> None:
        super().__init__(name, **given)
        self.prefix = f"{name} "
