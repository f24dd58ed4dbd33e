"""Backends under test, with the settings of `BACKENDS`."""

from __future__ import annotations

from modal_server import localmodal, localmodal_server
from tried_backends import (
    backend_name,
    bench,
    cache,
    configure,
    make_bench,
    provider,
    server_variant,
    start_modal,
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
    "start_modal",
]
