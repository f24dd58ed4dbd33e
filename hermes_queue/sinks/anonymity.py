"""Keeps endpoints, hosts and addresses out of datasets that are given away.

A record's own account (failures, earlier attempts, events) is searched; conversations are data
and stay unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from hermes_queue.models import ScoredTrajectory

PLACES = frozenset({"base_url", "server", "host", "worker", "owner", "sandbox_id"})
"""Fields that say where something ran, wherever they occur."""
HIDDEN = "[address]"

_ADDRESS = re.compile(
    r"\b[a-z][a-z0-9+.-]{0,20}://[^\s'\"<>|)\]},;]+"  # a URL of any scheme
    r"|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?![\w.]*\d)"
    r"|\bhost [\w.-]{1,253}:\d+"  # aiohttp: "Cannot connect to host NAME:PORT ssl:default"
    r"|\[(?=[0-9a-f.]{0,45}:)[0-9a-f:.]{2,45}\](?::\d+)?",
    re.IGNORECASE,
)
"""Bounded everywhere, so that the time is linear in the length of a server's text."""
_TELLING = 4
"""Least length of a host name that is hidden by itself: shorter ones may be ordinary words."""


class Anonymous:
    """One record's own account without the places that it names."""

    def __init__(self, record: ScoredTrajectory) -> None:
        self._record = record

    @cached_property
    def _known(self) -> re.Pattern[str] | None:
        """A pattern of the places in the record: endpoints, the worker and its host."""
        record, where = self._record, self._record.provenance
        names = {where.host, where.worker or "", where.sandbox_id or ""}
        urls = [*(record.agent.base_url or "").split(","), *(t.server or "" for t in record.turns)]
        for url in {url.strip() for url in urls}:
            names |= {url, *_places_in(url)}
        known = sorted((n for n in names if len(n) >= _TELLING), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, known))) if known else None

    def text(self, text: str) -> str:
        """A text without addresses."""
        text = _ADDRESS.sub(HIDDEN, text)
        return self._known.sub(HIDDEN, text) if self._known else text

    def tree(self, value: Any) -> Any:
        """Plain values or models as plain values without places."""
        if isinstance(value, BaseModel):
            value = value.model_dump(mode="json")
        if isinstance(value, Mapping):
            kept = {name: item for name, item in value.items() if name not in PLACES}
            return {name: self.tree(item) for name, item in kept.items()}
        if isinstance(value, list | tuple):
            return [self.tree(item) for item in value]
        return self.text(value) if isinstance(value, str) else value


def _places_in(url: str) -> set[str]:
    """The host, and host with port, of a URL."""
    try:
        parts = urlsplit(url)
        return {parts.netloc.rpartition("@")[2], parts.hostname or ""}
    except ValueError:
        return set()
