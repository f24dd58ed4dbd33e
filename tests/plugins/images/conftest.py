"""Backends under test, as those of the core are."""

from __future__ import annotations

from modal_server import localmodal, localmodal_server
from tried_backends import cache, configure, make_bench, provider, server_variant, start_modal

__all__ = [
    "cache",
    "configure",
    "localmodal",
    "localmodal_server",
    "make_bench",
    "provider",
    "server_variant",
    "start_modal",
]
