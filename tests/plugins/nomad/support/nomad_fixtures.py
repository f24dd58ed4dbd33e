"""Nomad-compatible servers over real engines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from container_engines import EngineProcess
from nomad_on_engine import NomadOnEngine, nomad_on


@pytest.fixture(scope="session")
def nomads(
    engines: Callable[[str], EngineProcess], cache: Path
) -> Iterator[Callable[[str], NomadOnEngine]]:
    """Starts a server over each kind of engine once."""
    running: dict[str, NomadOnEngine] = {}
    with contextlib.ExitStack() as stack:

        def start(kind: str) -> NomadOnEngine:
            if kind not in running:
                running[kind] = stack.enter_context(nomad_on(engines(kind), cache))
            return running[kind]

        yield start


@pytest.fixture
def nomad(kind: str, nomads: Callable[[str], NomadOnEngine]) -> NomadOnEngine:
    """A server over this kind of engine."""
    return nomads(kind)


@pytest.fixture
def settings(
    nomad: NomadOnEngine, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Mapping[str, str]:
    """The settings as variables, also for workers that a test starts."""
    found = nomad.settings(cache)
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found
