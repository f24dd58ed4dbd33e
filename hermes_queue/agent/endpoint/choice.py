"""The endpoints of one model: which are trusted, and which one a trajectory uses.

A job may name its endpoint, and everybody who may enqueue writes jobs. So the worker's key, and
requests from the worker's network, go only to endpoints that the worker's operator has named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import urlsplit

from hermes_queue.errors import ModelConfigError
from hermes_queue.settings import ModelSettings

OPENAI_URL = "https://api.openai.com/v1"
"""Endpoint used if none is configured."""
NO_KEY = "none"
"""Sent if there is no key, or none for this endpoint."""

_PORTS = {"http": 80, "https": 443}
_PLAIN_URL = re.compile(
    r"(?P<scheme>https?)://"
    r"(?:[A-Za-z0-9._~!$&'()*+;=:%-]*@)?"
    r"(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:/[A-Za-z0-9._~-]+)*)/?",
    re.IGNORECASE,
)
"""URLs that every parser reads in the same way: no backslash, escape, query or non-ASCII."""


def split_urls(text: str | None) -> tuple[str, ...]:
    """The endpoints in a comma-separated list."""
    return tuple(filter(None, (part.strip() for part in (text or "").split(","))))


def choose_endpoint(urls: Sequence[str], key: str, failures: int) -> str:
    """One of `urls`, the same for equal arguments.

    Rendezvous hashing: samples of one item have the same `key`, and share an endpoint and so its
    prefix cache. Adding or removing an endpoint moves as few keys as possible. Each of `failures`,
    earlier attempts that failed because of an endpoint, moves on to the next one.
    """
    ranked = sorted(set(urls), key=lambda url: sha256(f"{url}\n{key}".encode()).digest())
    return ranked[failures % len(ranked)]


def is_within(url: str, trusted: str) -> bool:
    """Whether `url` equals `trusted` or is below it: scheme, host, port and path segments.

    User and password are ignored. A URL that parsers might read in different ways matches only
    its exact text.
    """
    if url == trusted:
        return True
    place, bound = _place(url), _place(trusted)
    if place is None or bound is None:
        return False
    return place[:3] == bound[:3] and place[3][: len(bound[3])] == bound[3]


def _place(url: str) -> tuple[str, str, int, tuple[str, ...]] | None:
    """Scheme, host, port and path segments; None if the URL is not plain."""
    found = _PLAIN_URL.fullmatch(url)
    if found is None:
        return None
    segments = tuple(filter(None, found["path"].split("/")))
    if {".", ".."} & set(segments):
        return None
    scheme = found["scheme"].lower()
    port = int(found["port"]) if found["port"] else _PORTS[scheme]
    return scheme, found["host"].lower(), port, segments


@dataclass(frozen=True, slots=True)
class OwnEndpoints:
    """The endpoints and the key that the operator of this process has configured."""

    urls: tuple[str, ...]
    """Endpoints of jobs that name none; () = OpenAI's."""
    trusted: tuple[str, ...]
    """Further endpoints that jobs may name."""
    key: str
    """Key for all of these."""
    others: str
    """Action for a job that names another endpoint: `refuse` or `without_key`."""

    @classmethod
    def of(cls, settings: ModelSettings) -> OwnEndpoints:
        """Endpoints from the settings, with OpenAI's environment variables as the default."""
        key = settings.api_key.get_secret_value() if settings.api_key else None
        return cls(
            urls=split_urls(settings.base_url or os.environ.get("OPENAI_BASE_URL")),
            trusted=split_urls(settings.trusted_urls),
            key=key or os.environ.get("OPENAI_API_KEY") or NO_KEY,
            others=settings.other_urls,
        )

    @property
    def open_to_jobs(self) -> list[str] | None:
        """Endpoints that jobs may name, without credentials; None = any."""
        if self.others != "refuse":
            return None
        return [without_credentials(url) for url in (*(self.urls or (OPENAI_URL,)), *self.trusted)]

    def trust(self, url: str) -> bool:
        """Whether the key may be sent to `url`."""
        own = self.urls or (OPENAI_URL,)
        return any(is_within(url, each) for each in (*own, *self.trusted))

    def key_for(self, url: str | None) -> str:
        """The key to send to an endpoint; None = OpenAI's endpoint."""
        return self.key if url is None or self.trust(url) else NO_KEY

    def allowed(self, named: str | None) -> tuple[str, ...]:
        """The endpoints of a job; () = OpenAI's. Raises ModelConfigError if one is refused."""
        urls = split_urls(named)
        for url in urls:
            if self.others == "refuse" and not self.trust(url):
                raise ModelConfigError(
                    f"agent openai: the job names the endpoint {without_credentials(url)}, which "
                    "this worker does not trust: leave out --base-url to use "
                    "HERMES_QUEUE_MODEL_BASE_URL, or add the endpoint to "
                    "HERMES_QUEUE_MODEL_TRUSTED_URLS of the workers"
                )
        return urls or self.urls


def without_credentials(url: str) -> str:
    """The URL without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
