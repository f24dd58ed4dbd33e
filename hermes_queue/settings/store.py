"""Settings of the object store of large bodies."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from hermes_queue.settings.section import PREFIX, Section

_PRINTABLE = re.compile(r"[!#-\[\]-~]+\Z")


class StoreSettings(Section, env_prefix=PREFIX + "STORE_"):
    """The object store of large records; Redis then holds only references to them."""

    url: str | None = None
    """Store for large records: any fsspec URL that all workers and readers can reach, such as
    `s3://bucket/hermes`. Other than `file://`, it needs `pip install 'hermes-queue[store]'` and
    the library of its scheme. Unset or empty: all records are in Redis."""
    from_bytes: int = Field(default=256 << 10, ge=1024)
    """Encoded size from which a record goes to the store."""
    max_bytes: int = Field(default=128 << 20, ge=1024)
    """Encoded size above which a record is refused if there is a store. Without a store, the limit
    is `HERMES_QUEUE_RESULTS_INLINE_MAX_BYTES`."""
    shared: bool = False
    """Confirms that a `file://` directory is mounted at the same place on every host. Without this
    it is refused, unless Redis is a unix socket and so there is only one host."""
    grace_s: float = Field(default=3600.0, gt=0)
    """Minimum time for which an object is kept after the last record that names it is gone; it is
    deleted before twice that time."""

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        url = (url or "").rstrip("/")
        if not url:
            return None
        parts = urlsplit(url)
        if not _PRINTABLE.match(url):
            raise ValueError("must be ASCII without spaces, quotes and backslashes")
        if not parts.scheme or "://" not in url or not (parts.netloc or parts.path):
            raise ValueError("must be a URL such as s3://bucket/directory")
        if parts.scheme == "memory":
            raise ValueError("memory:// is the memory of one process: no other process can read it")
        if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
            raise ValueError("must be file:// and an absolute path, such as file:///srv/bodies")
        if parts.password:
            raise ValueError(
                "must hold no password: it would be in every claim; give it to the library of the "
                "scheme, see docs/object-store.md"
            )
        return url
