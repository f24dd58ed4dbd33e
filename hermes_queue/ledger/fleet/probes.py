"""Verdicts of probes of model endpoints, so that a fleet probes each endpoint once."""

from __future__ import annotations

import hashlib
from typing import Any

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger


class Probes:
    """The verdicts in one deployment's Redis."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def load(self, endpoint: str, model: str) -> str | None:
        """The verdict on a model at an endpoint, while it is valid.

        Raises:
            RedisUnavailable: no answer.
        """
        with explained(self._ledger.url):
            key = self._ledger.key(f"probe:{_hash(endpoint, model)}")
            verdict: Any = self._ledger.client.hget(key, "verdict")
        return verdict.decode() if verdict else None

    def save(self, endpoint: str, model: str, verdict: str, *, ttl_s: float) -> None:
        """Keep a verdict for `ttl_s` seconds, replacing an earlier one.

        Raises:
            RedisUnavailable, RedisFull: it may be stored.
        """
        self._ledger.call(
            "probe_save",
            hash=_hash(endpoint, model),
            endpoint=endpoint,
            model=model,
            verdict=verdict,
            ttl_s=ttl_s,
        )


def _hash(endpoint: str, model: str) -> str:
    """A key part of fixed length, without special characters of URLs."""
    text = f"{endpoint}\n{model}".encode()
    return hashlib.sha256(text).hexdigest()[:32]
