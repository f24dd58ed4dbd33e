"""Engines for the nodes of a Nomad-compatible server."""

from engine_fixtures import cache, engine, engines, kind

__all__ = ["cache", "engine", "engines", "kind"]
