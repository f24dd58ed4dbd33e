"""Bodies behind fsspec, on a real server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ftp_store import FtpStore

from hermes_queue.bodies.store import ClaimCheck, ObjectLost, ObjectStore, fetch
from hermes_queue.errors import StoreUnavailable

BODY = os.urandom(300_000)
# ftplib leaves sockets of broken connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FtpStore]:
    server = FtpStore(tmp_path / "ftp").start()
    yield server
    server.stop()


@pytest.fixture
def store(server: FtpStore) -> ObjectStore:
    return ObjectStore(server.url)


def put(store: ObjectStore, body: bytes = BODY) -> ClaimCheck:
    return store.put(store.place("run", "name"), body)


def test_what_is_put_can_be_fetched_and_removed(store, server):
    claim = put(store)
    assert fetch(claim) == BODY
    store.remove(claim.url)
    store.remove(claim.url)
    assert [path for path in server.directory.rglob("*") if path.is_file()] == []


def test_an_object_that_was_removed_is_put_again_whatever_was_listed_before(store):
    claim = put(store)
    store.remove(claim.url)
    assert put(store) == claim
    assert fetch(claim) == BODY


def test_an_object_that_is_gone_is_lost(store, server):
    claim = put(store)
    (server.directory / "bodies" / "run" / "name").unlink()
    with pytest.raises(ObjectLost, match="is gone"):
        fetch(claim)


def test_an_object_with_other_bytes_is_lost(store, server):
    claim = put(store)
    (server.directory / "bodies" / "run" / "name").write_bytes(BODY[::-1])
    with pytest.raises(ObjectLost, match="damaged"):
        fetch(claim)


def test_a_half_written_object_is_written_again(store, server):
    claim = put(store)
    (server.directory / "bodies" / "run" / "name").write_bytes(BODY[:1000])
    put(store)
    assert fetch(claim) == BODY


def test_a_server_that_is_away_is_no_loss_and_its_return_is_noticed(store, server):
    claim = put(store)
    server.stop()
    for call in (lambda: fetch(claim), lambda: put(store), lambda: store.remove(claim.url)):
        with pytest.raises(StoreUnavailable, match="does not answer"):
            call()
    server.start()
    assert fetch(claim) == BODY


def test_the_probe_leaves_nothing(store, server):
    store.probe()
    assert [path for path in server.directory.rglob("*") if path.is_file()] == []
