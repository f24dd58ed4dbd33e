"""Bodies in an object store: stored under their content hash, and checked against it when fetched.

Redis then holds a claim at `body:{trajectory_id}`: URL, hash and size. A body begins with the magic
number of zstd, so the two cannot be confused.

`file://` needs no library; other schemes use fsspec, which is imported on first use. All calls
block. Credentials and endpoints are configured as the library of each scheme expects, on workers
and readers alike.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from hermes_queue.bodies.access import access, explained, is_file
from hermes_queue.bodies.codec import MAX_DECODED_BYTES, refuse_newer
from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.settings import StoreSettings

_HEAD = b"hermes-queue claim "
_VERSION = 1
_FORM = re.compile(re.escape(_HEAD) + rb"(\d{1,9})\n(.*)\Z", re.DOTALL)
_AT_ONCE = 8
"""Objects that one call fetches concurrently."""
_PLAIN = str.maketrans("/:", "~~")
"""Replaces characters of run ids that have a meaning in paths and in fsspec's URLs."""


@dataclass(frozen=True, slots=True)
class ClaimCheck:
    """Location, hash and size of one body in an object store."""

    url: str
    sha256: str
    """SHA-256 of the object's bytes, in hexadecimal."""
    size_bytes: int

    def encode(self) -> bytes:
        """The bytes that Redis holds."""
        fields = {"url": self.url, "sha256": self.sha256, "bytes": self.size_bytes}
        return (
            _HEAD
            + b"%d\n" % _VERSION
            + json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
        )

    @classmethod
    def parse(cls, stored: bytes) -> ClaimCheck | None:
        """The claim in `stored`; None if `stored` is the body itself.

        Raises:
            SchemaTooNew: a newer version wrote it.
            ValueError: the claim is damaged.
        """
        if not is_claim(stored):
            return None
        form = _FORM.match(stored)
        if not form:
            raise ValueError("a damaged claim of a body")
        refuse_newer("a claim of a body", int(form[1]), _VERSION)
        try:
            fields = json.loads(form[2])
            return cls(str(fields["url"]), str(fields["sha256"]), int(fields["bytes"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"a damaged claim of a body: {error}") from error


def is_claim(stored: bytes) -> bool:
    """Whether Redis holds a claim in place of the body."""
    return stored.startswith(_HEAD)


class ObjectLost(HermesQueueError):
    """An object is gone or does not match its claim, permanently; the message names it."""


class ObjectStore:
    """The store in which workers put bodies. Thread-safe."""

    def __init__(self, url: str) -> None:
        """A store below `url`; nothing is opened before the first call."""
        self.url = url.rstrip("/")

    @classmethod
    def from_settings(cls, settings: StoreSettings, redis_url: str) -> ObjectStore | None:
        """The configured store, or None.

        Raises:
            ConfigurationError: a library is missing, or other hosts could not read the store.
        """
        if settings.url is None:
            return None
        one_host = redis_url.startswith("unix:")
        if is_file(settings.url) and not (one_host or settings.shared):
            raise ConfigurationError(
                "HERMES_QUEUE_STORE_URL: readers on other hosts cannot open file:// URLs; name an "
                "object store, or set HERMES_QUEUE_STORE_SHARED=true if this directory is mounted "
                "at the same place on every host"
            )
        access(settings.url)
        return cls(settings.url)

    def place(self, run_id: str, sha256: str, turn: int = 0) -> str:
        """URL of an object; `turn` > 0 gives further URLs for the same bytes."""
        run = run_id.translate(_PLAIN)
        return f"{self.url}/{run}/{sha256}{f'-{turn}' if turn else ''}"

    def put(self, url: str, body: bytes) -> ClaimCheck:
        """Write `body` to `url`, durably. An object of the same size is left alone.

        Raises:
            StoreUnavailable: it may have been written or not; repeat the call.
        """
        reach = access(url)
        with explained(url):
            try:
                there = reach.size_bytes(url) == len(body)
            except FileNotFoundError:
                there = False
            if not there:
                reach.write(url, body)
        return ClaimCheck(url, hashlib.sha256(body).hexdigest(), len(body))

    def remove(self, url: str) -> None:
        """Delete an object, if it exists.

        Raises:
            StoreUnavailable: it may still be there.
        """
        with explained(url), suppress(FileNotFoundError):
            access(url).remove(url)

    def probe(self) -> None:
        """Write, read and delete a small object.

        Raises:
            ConfigurationError: a library is missing.
            StoreUnavailable: one of the three failed; the message says why.
            ObjectLost: the bytes read are not the bytes written.
        """
        url = self.place("probe", secrets.token_hex(16))
        claim = self.put(url, os.urandom(64))
        try:
            fetch(claim)
        finally:
            self.remove(url)


def fetch(claim: ClaimCheck) -> bytes:
    """Fetch the body of `claim` and check it.

    Raises:
        ObjectLost: it is gone or damaged.
        StoreUnavailable: the store does not answer or refuses access; try again later.
        ConfigurationError: a library that its URL needs is not installed.
    """
    if not 0 < claim.size_bytes <= MAX_DECODED_BYTES:
        raise ObjectLost(f"its claim declares {claim.size_bytes} bytes")
    reach = access(claim.url)
    try:
        with explained(claim.url):
            data = reach.read(claim.url)
    except FileNotFoundError:
        raise ObjectLost(f"its object {claim.url} is gone") from None
    if len(data) != claim.size_bytes or hashlib.sha256(data).hexdigest() != claim.sha256:
        raise ObjectLost(
            f"its object {claim.url} is damaged: {len(data)} bytes of another hash, "
            f"not {claim.size_bytes} of SHA-256 {claim.sha256}"
        )
    return data


def resolve(stored: Mapping[str, bytes | None]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Bodies by name, and the reasons why other names have none.

    Args:
        stored: name -> the value in Redis: a body, a claim, or None.

    Raises:
        StoreUnavailable, ConfigurationError: as `fetch`.
        SchemaTooNew: a newer version wrote a claim.
    """
    bodies: dict[str, bytes] = {}
    lost: dict[str, str] = {}
    claims: dict[str, ClaimCheck] = {}
    for name, value in stored.items():
        try:
            claim = None if value is None else ClaimCheck.parse(value)
        except ValueError as error:
            lost[name] = f"the body of {name} cannot be read: {error}"
            continue
        if value is None:
            lost[name] = f"the body of {name} is gone"
        elif claim is None:
            bodies[name] = value
        else:
            claims[name] = claim
    for name, found in _fetched(claims):
        if isinstance(found, bytes):
            bodies[name] = found
        else:
            lost[name] = f"the body of {name} is lost: {found}"
    return {name: bodies[name] for name in stored if name in bodies}, lost


def _fetched(claims: Mapping[str, ClaimCheck]) -> Iterator[tuple[str, bytes | ObjectLost]]:
    def one(claim: ClaimCheck) -> bytes | ObjectLost:
        try:
            return fetch(claim)
        except ObjectLost as error:
            return error

    if len(claims) > 1:
        with ThreadPoolExecutor(min(_AT_ONCE, len(claims)), "bodies") as threads:
            yield from zip(claims, threads.map(one, claims.values()), strict=True)
    else:
        yield from ((name, one(claim)) for name, claim in claims.items())
