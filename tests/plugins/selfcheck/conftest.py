"""The contract of backends on those under test."""

from __future__ import annotations

import os

import pytest
from modal_server import localmodal, localmodal_server
from tried_backends import (
    backend_name,
    bench,
    cache,
    configure,
    make_bench,
    provider,
    server_variant,
)

__all__ = [
    "backend_name",
    "bench",
    "cache",
    "configure",
    "localmodal",
    "localmodal_server",
    "make_bench",
    "provider",
    "server_variant",
]

DEAR_ON_MODAL = {
    "a_program_in_the_slot_talks_to_the_worker",
    "connections_are_bounded_and_slow_readers_wait",
    "what_a_snapshot_cannot_bring_back_has_none",
}
"""Megabytes and hundreds of connections through two implementations of a protocol, of which
test_relay.py tries the relay without them; and what test_modal_snapshots.py tries, too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the contract on Modal and without isolation to `make test-fleet`, the dearest checks
    on Modal to `make test-exhaustive`, and all of it to those who name their backends."""
    for item in items if not os.environ.get("BACKENDS") else ():
        callspec = getattr(item, "callspec", None)
        params = callspec.params if callspec else {}
        check, backend = params.get("check"), str(params.get("backend_name", ""))
        if check and backend.startswith("modal"):
            dear = getattr(check, "name", "") in DEAR_ON_MODAL
            item.add_marker(pytest.mark.exhaustive if dear else pytest.mark.fleet)
        elif check and backend == "local-unfenced":
            item.add_marker(pytest.mark.fleet)
