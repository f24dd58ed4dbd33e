"""Placeholders in the templates of a program.

`{url}` is a placeholder. `${url}` is left to the shell, `{{url}}` stands for `{url}` itself, and
other braces stay as they are, so that JSON needs no escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

PLACEHOLDERS = ("task", "model", "url", "key", "home", "workspace", "max_turns", "agent")
NEEDED = ("task", "url", "key")
"""A program without these cannot work."""

_PLACE = re.compile(r"\{\{([a-z_]+)\}\}|(?<!\$)\{([a-z_]+)\}")


def placeholders(template: str) -> Iterator[str]:
    """The placeholders of a template, known or not."""
    for match in _PLACE.finditer(template):
        if match[2]:
            yield match[2]


def fill(template: str, values: Mapping[str, str]) -> str:
    """The template with its placeholders replaced. Raises KeyError for one without a value."""
    return _PLACE.sub(lambda match: values[match[2]] if match[2] else f"{{{match[1]}}}", template)
