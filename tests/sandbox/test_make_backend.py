"""Backends are found by name."""

from __future__ import annotations

import sys
import types

import pytest
from pydantic_settings import BaseSettings, SettingsConfigDict

from hermes_queue.errors import ConfigurationError, SandboxRejected
from hermes_queue.images.spec import ImageSpec
from hermes_queue.ledger.fleet.creations import FleetCreationGate
from hermes_queue.plugins import Plugin
from hermes_queue.sandbox import find_backend, known_backends, make_backend
from hermes_queue.sandbox.base import Capabilities, SandboxBackend, SlotSpec
from hermes_queue.sandbox.fleet import CreationRate, Fleet
from hermes_queue.sandbox.local.backend import LocalBackend
from hermes_queue.sandbox.modal.backend import ModalBackend
from hermes_queue.sandbox.offers import Flag
from hermes_queue.settings import LocalSandboxSettings, check_environment


@pytest.fixture
def theirs(monkeypatch):
    """A module of somebody else's, `their_backend`, that holds what it is given."""

    def install(**attributes):
        module = types.ModuleType("their_backend")
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, "their_backend", module)

    return install


def test_a_short_name_is_a_module_with_a_backend():
    backend = make_backend("local", slots=3, labels={"worker": "w"})
    assert isinstance(backend, LocalBackend)
    assert backend.free_slots == 3
    assert backend.labels == {"deployment": "default", "worker": "w"}


def test_a_class_of_your_own_is_found_by_its_path():
    name = "hermes_queue.sandbox.local.backend:LocalBackend"
    assert isinstance(make_backend(name, slots=1), LocalBackend)


@pytest.mark.parametrize("kind", [LocalBackend, ModalBackend])
async def test_without_the_plugin_of_images_tasks_with_one_are_refused(kind):
    spec = SlotSpec(image=ImageSpec(reference="task"))
    with pytest.raises(SandboxRejected, match="the plugin 'images', which is not installed here"):
        await kind(slots=1).prepare(spec)


def test_a_plugin_makes_a_backend_of_the_core_with_slots_that_have_images(theirs, monkeypatch):
    theirs(Plain=Plain, check=print)
    added = Plugin(name="t", purpose="", image_slots={"local": "their_backend:Plain"})
    monkeypatch.setattr("hermes_queue.sandbox.declared", lambda: iter([added]))
    offer = find_backend("local")
    assert (offer.make, offer.check) == (Plain, print)
    assert offer.settings is LocalSandboxSettings
    assert find_backend("modal").make is not Plain


class Plain(SandboxBackend):
    """A backend of somebody else's."""

    capabilities = Capabilities(isolation=False)

    def __init__(self, *, slots=None, labels=None, fleet=None):
        self.given = slots, labels, fleet


def test_every_backend_is_given_slots_labels_and_the_fleet(theirs):
    theirs(Plain=Plain)
    given = 1, {"worker": "w"}, Fleet()
    made = make_backend("their_backend:Plain", slots=given[0], labels=given[1], fleet=given[2])
    assert made.given == given


class Misspelt(Plain):
    def __init__(self, *, slots=None, labels=None, fleets=None):
        super().__init__(slots=slots, labels=labels, fleet=fleets)


def test_a_constructor_that_takes_no_fleet_is_refused_with_what_it_has_to_take(theirs):
    theirs(Misspelt=Misspelt)
    with pytest.raises(ConfigurationError, match=r"'fleet'; its constructor takes .* and fleet"):
        make_backend("their_backend:Misspelt")


class Fixed(Plain):
    """Of before the contract had `resize`."""

    resize = property()


def test_a_backend_that_lacks_a_part_of_the_contract_is_refused_with_its_name(theirs):
    theirs(Fixed=Fixed)
    with pytest.raises(ConfigurationError, match="'their_backend:Fixed' has no resize: "):
        make_backend("their_backend:Fixed")


def test_flags_settings_and_checks_of_a_backend_come_with_its_module(theirs):
    class Settings(BaseSettings):
        model_config = SettingsConfigDict(env_prefix="HERMES_QUEUE_THEIRS_")
        region: str = ""

    flag = Flag("--region", "HERMES_QUEUE_THEIRS_REGION", "where", metavar="NAME")
    theirs(Plain=Plain, SETTINGS=Settings, FLAGS=(flag,), check_profile=print)
    offer = find_backend("their_backend:Plain")
    assert (offer.settings, offer.flags, offer.check_profile) == (Settings, (flag,), print)
    assert offer.check is None


@pytest.mark.parametrize("attribute", ["SETTINGS", "FLAGS"])
def test_what_is_no_settings_or_flag_is_refused_with_its_name(theirs, attribute):
    theirs(Plain=Plain, **{attribute: ("--region",)})
    with pytest.raises(ConfigurationError, match=f"{attribute} "):
        find_backend("their_backend:Plain")


@pytest.mark.parametrize(("name", "known"), [("REGION", True), ("REIGON", False)])
def test_variables_of_a_backend_of_your_own_are_known_and_checked(theirs, monkeypatch, name, known):
    class Settings(BaseSettings):
        model_config = SettingsConfigDict(env_prefix="HERMES_QUEUE_THEIRS_")
        region: int = 0

    theirs(Plain=Plain, SETTINGS=Settings)
    monkeypatch.setenv("HERMES_QUEUE_SANDBOX_BACKEND", "their_backend:Plain")
    monkeypatch.setenv(f"HERMES_QUEUE_THEIRS_{name}", "west")
    problem = "REGION: Input should be a valid integer" if known else "did you mean .*_REGION"
    with pytest.raises(ConfigurationError, match=problem):
        check_environment()


class Creates(Plain):
    """One with a rate of its own, that no setting of ours knows."""

    async def create(self):
        async with self.given[2].gate.creating(CreationRate(0.01, 1)):
            pass


async def test_the_fleets_gate_holds_a_backend_of_your_own_to_its_own_rate(theirs, ledger):
    theirs(Creates=Creates)
    gate = FleetCreationGate(ledger, "their_backend:Creates")
    backend = make_backend("their_backend:Creates", fleet=Fleet(gate=gate))
    await backend.create()
    assert gate.take("the next one", CreationRate(0.01, 1)) > 1


@pytest.mark.parametrize("name", ["podman", "base", "fence", "", "../local", "a.b"])
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
