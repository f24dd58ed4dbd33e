from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from view_server import OPERATE_TOKEN, VIEW_TOKEN, ViewServer

from hermes_queue.view.answers import Refusal
from hermes_queue.view.app import Call, Route
from hermes_queue.view.assets import Assets
from hermes_queue.view.routes import every_route
from hermes_queue.view.site import Site
from hermes_queue.view.tokens import Keys

PAGE = """<!doctype html><head><script type="module" src="/static/main.js"></script>
</head><body></body>"""


def fails(call: Call) -> object:
    raise RuntimeError("a secret of the server")


def refuses(call: Call) -> object:
    raise Refusal(409, "it cannot be done")


OWN = (
    Route("GET", "/api/test/fails", fails),
    Route("GET", "/api/test/ids/{id}", lambda call: call.json(call.path["id"])),
    Route("POST", "/api/test/changes", lambda call: call.json(dict(call.body)), role="operate"),
)
"""Routes that only the tests have."""


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    directory: Path = tmp_path_factory.mktemp("static")
    (directory / "index.html").write_text(PAGE)
    (directory / "main.js").write_text('import "./vendor/other.js";\n' * 100)
    (directory / "vendor").mkdir()
    (directory / "vendor/other.js").write_text("export {};")
    (directory / "vendor/LICENSE").write_text("do as you like")
    return Assets(directory)


@pytest.fixture(scope="session")
def server(assets: Assets) -> Iterator[ViewServer]:
    site = Site(
        keys=Keys({"view": VIEW_TOKEN, "operate": OPERATE_TOKEN}),
        cookie="hq_view",
        deployment="hq:",
        version="1.2.3",
        assets=assets,
        sources=[{"kind": "jsonl", "name": "out.jsonl"}],
    )
    made = ViewServer(site, (*OWN, *every_route()))
    yield made
    made.close()
