"""What the HTTP server of metrics serves, without the server."""

from __future__ import annotations

from collections.abc import Callable

Page = Callable[[], tuple[bytes, str]]
"""Returns a body and its content type."""


class NotNow(Exception):
    """Raised by a page: answered with the status 503 and this text."""
