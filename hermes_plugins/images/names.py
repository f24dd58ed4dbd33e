"""The images that this host has by name: imported, pulled, made from packages, or built.

<cache>/images/names/<digest of the name>.json
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from hermes_queue.disk.durable import replaced
from hermes_queue.images.spec import ImageConfig

ImageOrigin = Literal["imported", "pulled", "built"]


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """A finished image."""

    name: str
    """Whole name, see `permission.full_name`; of a built one `context:<digest>`."""
    top: str
    """Key of its highest layer."""
    config: ImageConfig
    digest: str
    """Hex SHA-256: of the manifest if pulled, of the archive if imported, else over what it was
    made from."""
    origin: ImageOrigin
    source: str
    """For people: the registry, the archive or the Dockerfile."""
    created: float
    bases: Mapping[str, str] = field(default_factory=dict)
    """Of a built one: the images that it needs, as the Dockerfile names them, and their digests."""

    @property
    def kept(self) -> bool:
        """Whether pruning by space leaves it, because nothing could bring it back."""
        return self.origin == "imported"


_RECORD = TypeAdapter(ImageRecord)


class ImageNames:
    """The records below one directory."""

    def __init__(self, root: Path) -> None:
        self._root = root / "names"

    def get(self, name: str) -> ImageRecord | None:
        """The record of a whole name."""
        with suppress(OSError, ValidationError):
            found = _RECORD.validate_json(self._path(name).read_bytes())
            return found if found.name == name else None
        return None

    def put(self, record: ImageRecord) -> None:
        """Add or replace a record. Raises OSError."""
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._path(record.name)
        unfinished = path.with_name(f".{path.stem}.{secrets.token_hex(4)}")
        with replaced(path, unfinished):
            unfinished.write_bytes(_RECORD.dump_json(record))

    def forget(self, name: str) -> None:
        """Remove a record. Idempotent."""
        self._path(name).unlink(missing_ok=True)

    def all(self) -> list[ImageRecord]:
        """All records by name; files that are none are passed over."""
        found = []
        for path in self._root.glob("[!.]*.json"):
            with suppress(OSError, ValidationError):
                found.append(_RECORD.validate_json(path.read_bytes()))
        return sorted(found, key=lambda record: record.name)

    def _path(self, name: str) -> Path:
        return self._root / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"
