"""The reference that Redis holds to a body in an object store: URL, hash and size.

It stands at `body:{trajectory_id}` in place of the body. A body begins with the magic number of
zstd, so the two cannot be confused.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from hermes_queue.errors import SchemaTooNew

_HEAD = b"hermes-queue claim "
_VERSION = 1
_FORM = re.compile(re.escape(_HEAD) + rb"(\d{1,9})\n(.*)\Z", re.DOTALL)


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
        if int(form[1]) > _VERSION:
            raise SchemaTooNew(
                f"a claim of a body has version {int(form[1])}, this hermes-queue reads up to "
                f"{_VERSION}: upgrade hermes-queue here"
            )
        try:
            fields = json.loads(form[2])
            return cls(str(fields["url"]), str(fields["sha256"]), int(fields["bytes"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"a damaged claim of a body: {error}") from error


def is_claim(stored: bytes) -> bool:
    """Whether Redis holds a claim in place of the body."""
    return stored.startswith(_HEAD)
