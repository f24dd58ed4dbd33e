"""Render the tables of pages that are made from code: keys of Redis, causes of failure.

`make docs` writes them between their marks; a test fails when a page has another table. The mark of
a table on a plugin's page is the target of the function that gives its rows, the head first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from hermes_queue.errors import CAUSES
from hermes_queue.keyspace.keys import ROLES, keys
from hermes_queue.plugins import load_target
from hermes_queue.settings import RetrySettings

DOCS = Path(__file__).parent


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def key_table() -> str:
    """What each key of Redis holds."""
    head = ("key", "type", "written by", "what", "expires")
    rows = [(f"`{k.pattern}`", k.type, f"`{k.owner}`", k.what, k.expires or "-") for k in keys()]
    return table(head, rows)


def rights_table() -> str:
    """Who may read and write which key of Redis."""
    rows = [(f"`{k.pattern}`", k.type, *k.rights.values()) for k in keys()]
    return table(("key", "type", *ROLES), rows)


def cause_table() -> str:
    """What follows from each cause of a failure."""
    head = ("cause", "what", "attempts", "refilled", "opens the breaker of", "the run pauses")
    return table(
        (*head, "dead letter"),
        [
            (
                f"`{cause.part_of}`, of it `{name}`" if cause.part_of else f"`{name}`",
                cause.what,
                _attempts(cause.attempts),
                "yes" if cause.refilled else "-",
                f"its {breaker}" if (breaker := CAUSES[cause.part_of or name].breaker) else "-",
                "yes" if cause.pauses_run else "-",
                "yes" if cause.dead_letter else "-",
            )
            for name, cause in CAUSES.items()
        ],
    )


def table_of(target: str) -> str:
    """A table of a plugin."""
    head, *rows = load_target(target)()
    return table(head, rows)


def _attempts(setting: str | None) -> str:
    if setting is None:
        return "1"
    prefix = RetrySettings.model_config["env_prefix"]
    default = RetrySettings.model_fields[setting].default
    return f"{default} (`{prefix}{setting.upper()}`)"


TABLES = {
    ("retries.md", "causes"): cause_table,
    ("redis-keys.md", "keys"): key_table,
    ("security.md", "rights"): rights_table,
}
"""By page and mark."""


def pages() -> list[str]:
    """Pages that may have tables."""
    ours = {path.relative_to(DOCS).as_posix() for path in DOCS.glob("plugins/*.md")}
    return sorted({page for page, _ in TABLES} | ours)


def render(page: str, text: str) -> str:
    """The page with its tables as they follow from the code."""
    tables = {mark: rendered for (name, mark), rendered in TABLES.items() if name == page}
    for target in re.findall(r"<!-- ([\w.]+:\w+): made by `make docs` -->", text):
        tables[target] = partial(table_of, target)
    for mark, rendered in tables.items():
        begin, end = f"<!-- {mark}: made by `make docs` -->", f"<!-- /{mark} -->"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"docs/{page} has no place for its table {mark!r}")
        text = f"{before}{begin}\n\n{rendered()}\n\n{end}{after}"
    return text


if __name__ == "__main__":
    for page in pages():
        path = DOCS / page
        path.write_text(render(page, path.read_text(encoding="utf-8")), encoding="utf-8")
