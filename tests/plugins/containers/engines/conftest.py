"""Engines for the tests of the backend `docker`."""

from engine_fixtures import (
    bench,
    cache,
    engine,
    engines,
    environment,
    kill_service,
    kind,
    make_backend,
)

__all__ = [
    "bench",
    "cache",
    "engine",
    "engines",
    "environment",
    "kill_service",
    "kind",
    "make_backend",
]
