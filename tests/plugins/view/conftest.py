from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from records import make_job, make_record
from roles_redis import as_role, guarded, redis_7, worker
from view_server import OPERATE_TOKEN, VIEW_TOKEN, ViewServer

from hermes_plugins.view.answers import Refusal
from hermes_plugins.view.app import ApiCall, Route
from hermes_plugins.view.assets import Assets
from hermes_plugins.view.index.index import Index
from hermes_plugins.view.site import Tell, ViewSite
from hermes_plugins.view.sources.jsonl import JsonlSource
from hermes_plugins.view.tokens import Keys

__all__ = ["as_role", "guarded", "redis_7", "worker"]  # fixtures of several folders
STRANGE = "odd/id.0"
PAGE = """<!doctype html><head><script type="module" src="/static/main.js"></script>
</head><body></body>"""


def fails(call: ApiCall) -> object:
    raise RuntimeError("a secret of the server")


def refuses(call: ApiCall) -> object:
    raise Refusal(409, "it cannot be done")


OWN = (
    Route("GET", "/api/test/fails", fails, parameters=("q",)),
    Route("GET", "/api/test/fails/{id}", fails),
    Route("GET", "/api/test/ids/{id}", lambda call: call.json(call.path["id"])),
    Route("POST", "/api/test/changes", lambda call: call.json(dict(call.body)), role="operate"),
)
"""Routes that only the tests have."""


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    directory: Path = tmp_path_factory.mktemp("static")
    (directory / "index.html").write_text(PAGE)
    (directory / "main.js").write_text('import "./vendor/other.js";\nimport("./later.js");\n' * 50)
    (directory / "later.js").write_text("export {};")
    (directory / "vendor").mkdir()
    (directory / "vendor/other.js").write_text("export {};")
    (directory / "vendor/LICENSE").write_text("do as you like")
    return Assets(directory)


def lines() -> list[str]:
    """Records as a sink writes them: two groups of a run, one of hostile shape, one damaged."""
    records = [
        make_record(make_job("run", instance, sample, 2), score, policy=str(sample))
        for instance in ("one", "two")
        for sample, score in enumerate((1.0, 0.0 if instance == "one" else None))
    ]
    strange = {
        **json.loads(records[0].to_json()),
        "trajectory_id": STRANGE,
        "run_id": "strange",
        "group_id": "strange",
        "messages": [{"role": 7, "content": {"a": [1e999, "\ud800"]}}, "text", None],
        "report": {"reason": "</script><script>alert(1)</script>", "deep": deep(60)},
        "sequences": [{"ids": ["x"], "loss_mask": None}],
    }
    whole = [json.dumps(json.loads(record.to_json())) for record in records]
    return [*whole, json.dumps(strange), '{"trajectory_id": "half", "messages": [', ""]


def deep(levels: int) -> object:
    found: object = "bottom"
    for _ in range(levels):
        found = [found]
    return found


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    directory = tmp_path_factory.mktemp("index")
    (directory / "out.jsonl").write_text("\n".join(lines()))
    made = Index(directory / "index.sqlite", [JsonlSource(directory / "out.jsonl")])
    made.refresh()
    yield made
    made.close()


class Telling:
    """Tells what a test says, to everybody who listens."""

    def __init__(self) -> None:
        self.listeners: list[Tell] = []
        self.heard = threading.Event()

    @contextmanager
    def subscribe(self, tell: Tell) -> Iterator[None]:
        self.listeners.append(tell)
        tell("overview", {"leased": 1})
        self.heard.set()
        try:
            yield
        finally:
            self.listeners.remove(tell)


@pytest.fixture(scope="session")
def server(assets: Assets, index: Index) -> Iterator[ViewServer]:
    site = ViewSite(
        index=index,
        live=Telling(),
        keys=Keys({"view": VIEW_TOKEN, "operate": OPERATE_TOKEN}),
        cookie="hq_view",
        deployment="hq:",
        version="1.2.3",
        assets=assets,
        sources=[{"kind": "jsonl", "name": "out.jsonl"}],
    )
    made = ViewServer(site, OWN)
    yield made
    made.close()


# --- a real browser, for prove_*.py --------------------------------------------------------------


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A file with the records of `view_records`, and these, oldest first."""
    from view_records import write_records

    path: Path = tmp_path_factory.mktemp("records") / "out.jsonl"
    return path, write_records(path)


@pytest.fixture(scope="session")
def records(written: tuple[Path, list[Any]]) -> list[Any]:
    return written[1]


@pytest.fixture(scope="session")
def viewed(
    written: tuple[Path, list[Any]], redis_binary: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A browser at a viewer of these records."""
    from view_fixture import ViewedPages
    from view_records import write_findings
    from viewed import Viewed

    from hermes_plugins.view.findings import FindingFiles

    directory = tmp_path_factory.mktemp("viewed")
    findings = FindingFiles([write_findings(written[1], directory / "findings.jsonl")])
    pages = ViewedPages(written[0], directory, redis_binary, findings=findings)
    try:
        browser = Viewed(pages, tmp_path_factory.mktemp("profile"))
        try:
            yield browser
        finally:
            browser.close()
    finally:
        pages.close()


@pytest.fixture
def enqueued(viewed: Any) -> Iterator[Any]:
    """The run that is shown, with two jobs that wait in Redis."""
    from view_records import RUN

    from hermes_queue.broker.enqueue import enqueue
    from hermes_queue.ledger import Runs

    enqueue([make_job(RUN, f"waiting-{n}") for n in range(2)], ledger=viewed.pages.ledger)
    runs = Runs(viewed.pages.ledger)
    yield runs
    runs.cancel(RUN)
    runs.purge(RUN)
