"""Engines for the backends that pass the checks."""

from engine_fixtures import cache, engine, engines, environment, kind
from nomad_fixtures import nomad, nomads, settings

__all__ = ["cache", "engine", "engines", "environment", "kind", "nomad", "nomads", "settings"]
