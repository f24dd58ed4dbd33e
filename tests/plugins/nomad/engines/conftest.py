"""Engines for the nodes of a Nomad-compatible server."""

from engine_fixtures import cache, engine, engines, kind
from nomad_fixtures import nomad, nomads, settings

__all__ = ["cache", "engine", "engines", "kind", "nomad", "nomads", "settings"]
