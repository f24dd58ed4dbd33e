"""Backends are found by name."""

from __future__ import annotations

import sys
import types

import pytest

from hermes_queue.errors import ConfigurationError
from hermes_queue.sandbox import known_backends, make_backend
from hermes_queue.sandbox.base import Capabilities, SandboxBackend
from hermes_queue.sandbox.local.backend import LocalBackend


def test_a_short_name_is_a_module_with_a_backend(tmp_path):
    backend = make_backend("local", slots=3, cache=tmp_path, labels={"worker": "w"})
    assert isinstance(backend, LocalBackend)
    assert backend.free_slots == 3
    assert backend.labels == {"deployment": "default", "worker": "w"}


def test_a_class_of_your_own_is_found_by_its_path(tmp_path):
    name = "hermes_queue.sandbox.local.backend:LocalBackend"
    assert isinstance(make_backend(name, slots=1, cache=tmp_path), LocalBackend)


class Plain(SandboxBackend):
    """A backend of somebody else's who knows nothing of the fleet's means."""

    capabilities = Capabilities(isolation=False)

    def __init__(self, *, slots, labels, observer):
        self.given = {"slots": slots, "labels": labels, "observer": observer}


class Gated(Plain):
    def __init__(self, *, slots, labels, observer, gate=None):
        super().__init__(slots=slots, labels=labels, observer=observer)
        self.given["gate"] = gate


class Everything(SandboxBackend):
    capabilities = Capabilities(isolation=False)

    def __init__(self, **options):
        self.given = options


@pytest.mark.parametrize(
    ("backend", "taken"),
    [(Plain, set()), (Gated, {"gate"}), (Everything, {"gate", "snapshots"})],
)
def test_a_backend_is_given_what_the_fleet_offers_only_if_it_takes_it(backend, taken, monkeypatch):
    module = types.ModuleType("their_backend")
    module.Backend = backend
    monkeypatch.setitem(sys.modules, "their_backend", module)
    given = {"slots": 1, "labels": {}, "observer": None}
    offers = {"gate": "the gate", "snapshots": "the notes"}
    made = make_backend("their_backend:Backend", **given, offers=offers)
    assert made.given == {**given, **{name: offers[name] for name in taken}}


class Fixed(Plain):
    """Of before the contract had `resize`."""

    resize = property()


def test_a_backend_that_lacks_a_part_of_the_contract_is_refused_with_its_name(monkeypatch):
    module = types.ModuleType("their_backend")
    module.Fixed = Fixed
    monkeypatch.setitem(sys.modules, "their_backend", module)
    with pytest.raises(ConfigurationError, match="'their_backend:Fixed' has no resize: "):
        make_backend("their_backend:Fixed", slots=1, labels={}, observer=None)


@pytest.mark.parametrize("name", ["docker", "base", "fence", "", "../local", "a.b"])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(ConfigurationError, match=r"is unknown; known: .*local"):
        make_backend(name)


@pytest.mark.parametrize("name", ["no.such:Class", "hermes_queue.sandbox.local.backend:Nope"])
def test_a_path_that_cannot_be_loaded_says_why(name):
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        make_backend(name)


def test_only_backends_are_listed():
    assert "local" in known_backends()
    assert not {"base", "context", "fence", "execution"} & set(known_backends())
