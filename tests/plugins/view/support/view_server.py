"""The real server of the viewer in a thread, and a client that sends what it is told to."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from hermes_plugins.view.app import Route, make_app
from hermes_plugins.view.guard import HostNames
from hermes_plugins.view.routes import every_route
from hermes_plugins.view.serving import PageServer, listen, numeric
from hermes_plugins.view.site import ViewSite

VIEW_TOKEN = "view-token-of-the-tests-0123456789"
OPERATE_TOKEN = "operate-token-of-the-tests-0123456789"
Pairs = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Said:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ViewServer:
    """Serves `site` on a free port until it is closed; `routes` are more than there are."""

    def __init__(
        self, site: ViewSite, routes: Iterable[Route] = (), host: str = "127.0.0.1"
    ) -> None:
        # Another server may show the same, and end earlier or later.
        self.site = replace(site, stopping=asyncio.Event(), streams=0, saving=0)
        self.socket = listen(host, 0)
        self.host, self.port = numeric(self.socket)
        app = make_app(self.site, HostNames.of(self.host, self.port), (*routes, *every_route()))
        self.server = PageServer(app, ending=self.site.stopping.set)
        self._thread = threading.Thread(target=self.server.run, args=([self.socket],))
        self._thread.start()

    @property
    def authority(self) -> str:
        return f"{self.host}:{self.port}"

    def close(self) -> None:
        self.server.should_exit = True
        self._thread.join()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=20)

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: Pairs = (),
        token: str = "",
        host: Iterable[str] | None = None,
        body: bytes | None = None,
    ) -> Said:
        """Send a request as it is given here: nothing is encoded, corrected or added."""
        connection = self.connect()
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for each in [self.authority] if host is None else host:
                connection.putheader("Host", each)
            if token:
                connection.putheader("Authorization", f"Bearer {token}")
            for name, value in headers:
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Said(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str, token: str = VIEW_TOKEN, **more: Any) -> Said:
        return self.ask(path, token=token, **more)

    def post(self, path: str, value: Any, *, headers: Pairs = (), **more: Any) -> Said:
        """A change, as our page sends it."""
        return self.ask(
            path,
            method="POST",
            headers=[("Content-Type", "application/json"), ("X-HQ-Request", "1"), *headers],
            body=json.dumps(value).encode(),
            **more,
        )
