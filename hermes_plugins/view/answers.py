"""What the server says: values as JSON, and refusals of which every one looks the same."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from hermes_queue.wire.arrays import PackedArray

COMPRESSED_FROM_BYTES = 2048
_LEVEL = 1
"""Text of JSON shrinks to a fifth with it, at 100 MB/s."""
_DEPTH_MAX = 100
"""Nesting of what is shown; a record may hold as much as its writer liked."""


class Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, status: int, error: str, hint: str = "", *, at: int | None = None, **headers: str
    ) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.hint = hint
        self.at = at
        """Offset in the query at which it stops making sense, in UTF-16 code units."""
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def body(self) -> bytes:
        """The refusal as JSON."""
        value: dict[str, Any] = {"error": self.error, "hint": self.hint}
        if self.at is not None:
            value["at"] = self.at
        return to_json(value)

    def response(self) -> Response:
        """The refusal as a response."""
        return Response(
            self.body(), self.status, headers=self.headers, media_type="application/json"
        )


def to_json(value: Any) -> bytes:
    """`value` as JSON that every reader takes, whatever a record holds.

    Numbers that are not finite become null, lone surrogates question marks, and what nests deeper
    than 100 levels an ellipsis.
    """
    try:
        text = _dumped(value)
    except (ValueError, RecursionError, TypeError):
        text = _dumped(_plain(value))
    return text.encode("utf-8", "replace")


def _dumped(value: Any) -> str:
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_listed
    )


def _listed(value: object) -> list[Any]:
    if isinstance(value, PackedArray):
        return list(value)
    raise TypeError


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > _DEPTH_MAX:
        return "…"
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset | PackedArray):
        return [_plain(each, depth + 1) for each in value]
    if isinstance(value, bytes):
        return f"{len(value)} octets"
    return str(value)


def json_response(value: Any, *, compress: bool = False, status: int = 200) -> Response:
    """`value` as a response; with `compress`, packed if that is worth it."""
    body = to_json(value)
    headers = {"Vary": "Accept-Encoding"}
    if compress and len(body) >= COMPRESSED_FROM_BYTES:
        body = gzip.compress(body, _LEVEL, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, status, headers=headers, media_type="application/json")
