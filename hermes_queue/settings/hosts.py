"""Lists of hosts in settings: `host` or `host:port`, separated by commas."""

from __future__ import annotations

import re

HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?")


def split_hosts(text: str) -> list[str]:
    """The hosts of a comma-separated list.

    Raises:
        ValueError: one is not `host` or `host:port`.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        match = HOST_AND_PORT.fullmatch(word)
        if match is None or not 0 < int(match.group(2) or 1) < 65536:
            raise ValueError(
                f"{word!r} is neither a host such as files.example.com nor host:port; "
                "give no scheme and no path"
            )
    return words
