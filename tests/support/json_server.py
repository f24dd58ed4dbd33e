"""An HTTP server in a thread that answers JSON with JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from served_http import QuietHandler, served_http

Respond = Callable[[str, dict[str, Any], str], tuple[int, Any]]
"""Path, body ({} for GET) and the header `Authorization` -> status and answer."""


@contextmanager
def json_server(respond: Respond) -> Iterator[str]:
    """The server's URL, without a path. Each connection has a thread and stays open."""

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._respond({})

        def do_POST(self) -> None:
            self._respond(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _respond(self, body: dict[str, Any]) -> None:
            status, answer = respond(self.path, body, self.headers.get("authorization", ""))
            self.answer(status, json.dumps(answer).encode())

    with served_http(Handler) as url:
        yield url
