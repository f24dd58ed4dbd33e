"""Render docs/configuration.md from the settings classes.

`make docs` writes the page; a test fails when it is not what this script renders.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from hermes_queue.settings import sections

PAGE = Path(__file__).with_name("configuration.md")

HEAD = """\
# Configuration

Generated from `hermes_queue/settings/` by `make docs`; edit the classes, not this page.

Everything is read from environment variables, when the component that needs it starts.
A value that does not fit is named, with its variable, before any work begins (exit code 2).
Names end in their unit: `_S` seconds, `_MB` mebibytes, `_BYTES` bytes.
"""


def attribute_docs(section: type[BaseSettings]) -> dict[str, str]:
    """The docstring under each field of `section`, as one line each."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    docs: dict[str, str] = {}
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                docs[field.target.id] = " ".join(text.value.split()).replace("|", "\\|")
    return docs


def type_text(annotation: Any) -> str:
    """A type as a person who sets an environment variable thinks of it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return ", ".join(type_text(part) for part in arguments if part is not types.NoneType)
    if origin is not None:
        return "JSON"
    names: dict[Any, str] = {
        SecretStr: "secret",
        Path: "path",
        str: "text",
        bool: "`true` or `false`",
    }
    return names.get(annotation) or str(annotation.__name__)


def bounds_text(field: FieldInfo) -> str:
    """The numeric bounds of a field, e.g. " ≥ 1, ≤ 9"."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [
        f"{sign} {getattr(rule, name)}"
        for rule in field.metadata
        for name, sign in signs.items()
        if getattr(rule, name, None) is not None
    ]
    return " " + ", ".join(found) if found else ""


def default_text(field: FieldInfo) -> str:
    """The default as it would be written in the environment."""
    if field.default_factory is not None:
        return "see right"
    if field.default is None:
        return "unset"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return f"`{field.default}`" if str(field.default) else "empty"


def variables(section: type[BaseSettings]) -> dict[str, FieldInfo]:
    """Environment variable -> field."""
    prefix = str(section.model_config.get("env_prefix", ""))
    return {(prefix + name).upper(): field for name, field in section.model_fields.items()}


def render_section(section: type[BaseSettings]) -> str:
    """Heading, purpose and table of one settings class."""
    docs = attribute_docs(section)
    rows = [
        f"| `{variable}` | {type_text(field.annotation)}{bounds_text(field)} "
        f"| {default_text(field)} | {docs.get(name, '')} |"
        for (variable, field), name in zip(
            variables(section).items(), section.model_fields, strict=True
        )
    ]
    title = section.__name__.removesuffix("Settings")
    purpose = inspect.getdoc(section) or ""
    head = ["| variable | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {title}", "", purpose, "", *head, *rows, ""])


def render() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(render_section(section) for section in sections())])


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
