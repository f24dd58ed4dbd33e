"""Several endpoints of one model: which of them a trajectory talks to, for all of its turns."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256


def split_urls(text: str | None) -> tuple[str, ...]:
    """The endpoints in a comma-separated list."""
    return tuple(filter(None, (part.strip() for part in (text or "").split(","))))


def choose_endpoint(urls: Sequence[str], key: str, failures: int) -> str:
    """One of `urls`, the same for equal arguments.

    Rendezvous hashing: trajectories with the same `key` (samples of one item, which share
    their prompt and so the server's prefix cache) meet at one endpoint, and adding or removing
    one moves only the keys that have to move.

    Args:
        urls: at least one.
        key: what shall stay together.
        failures: how many earlier attempts an endpoint has failed for good; each moves on.
    """
    ranked = sorted(set(urls), key=lambda url: sha256(f"{url}\n{key}".encode()).digest())
    return ranked[failures % len(ranked)]
