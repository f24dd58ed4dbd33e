"""Checks the object store of large records."""

from __future__ import annotations

from collections.abc import Iterator

from hermes_queue.bodies.store import ObjectStore
from hermes_queue.cli.doctor.finding import Finding, error, ok
from hermes_queue.errors import HermesQueueError
from hermes_queue.settings import RedisSettings, StoreSettings


def store_findings() -> Iterator[Finding]:
    """Write, read and delete a small object, as this host's workers and readers would.

    Yields nothing without a configured store: all records are in Redis then.
    """
    url = RedisSettings().url
    redis_url = url.get_secret_value() if url else "unix:"  # embedded: everything runs on this host
    try:
        store = ObjectStore.from_settings(StoreSettings(), redis_url)
        if store is None:
            return
        store.probe()
    except HermesQueueError as problem:
        yield error("store", str(problem), "see docs/object-store.md")
        return
    yield ok("store", f"{store.url}: an object can be written, read and deleted")
