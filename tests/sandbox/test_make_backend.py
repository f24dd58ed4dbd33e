"""Backends are found by name."""

from __future__ import annotations

import pytest

from hermes_queue.errors import ConfigurationError
from hermes_queue.sandbox import known_backends, make_backend
from hermes_queue.sandbox.local import LocalBackend


def test_a_short_name_is_a_module_with_a_backend(tmp_path):
    backend = make_backend("local", slots=3, cache=tmp_path, labels={"worker": "w"})
    assert isinstance(backend, LocalBackend)
    assert backend.free_slots == 3
    assert backend.labels == {"deployment": "default", "pool": "local", "worker": "w"}


def test_a_class_of_your_own_is_found_by_its_path(tmp_path):
    name = "hermes_queue.sandbox.local:LocalBackend"
    assert isinstance(make_backend(name, slots=1, cache=tmp_path), LocalBackend)


@pytest.mark.parametrize("name", ["docker", "base", "fence", "", "../local", "a.b"])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(ConfigurationError, match=r"is unknown; known: .*local"):
        make_backend(name)


@pytest.mark.parametrize("name", ["no.such:Class", "hermes_queue.sandbox.local:Nope"])
def test_a_path_that_cannot_be_loaded_says_why(name):
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        make_backend(name)


def test_only_backends_are_listed():
    assert "local" in known_backends()
    assert not {"base", "context", "fence", "execution"} & set(known_backends())
