"""Producer flags that choose sandboxes: settings of the worker that the producer starts."""

from __future__ import annotations

import importlib
import re
import sys
import types

import pytest
from pydantic_settings import BaseSettings, SettingsConfigDict

from hermes_queue.errors import ConfigurationError
from hermes_queue.sandbox.offers import Flag
from hermes_queue.settings import sections, variable_names
from producers import gsm8k
from producers.base import main
from producers.run.options import parse

PRODUCERS = ("gsm8k", "swe_smith")


def parsed(*flags, producer="swe_smith"):
    module = importlib.import_module(f"producers.{producer}")
    return parse(module.PRODUCER, list(flags))


@pytest.mark.parametrize("producer", PRODUCERS)
def test_every_producer_has_them_and_they_become_settings(producer):
    flags = "--sandbox modal --modal-image python:3.11 --modal-slots-per-sandbox 10"
    arguments = parsed(*flags.split(), "--modal-min-sandboxes", "1", producer=producer)
    settings = arguments.sandbox.worker_settings()
    assert settings == {
        "HERMES_QUEUE_SANDBOX_BACKEND": "modal",
        "HERMES_QUEUE_MODAL_IMAGE": "python:3.11",
        "HERMES_QUEUE_MODAL_SLOTS_PER_SANDBOX": "10",
        "HERMES_QUEUE_MODAL_MIN_SANDBOXES": "1",
    }
    assert set(settings) <= set(variable_names(sections()))


def test_without_flags_the_environment_decides():
    assert parsed().sandbox.worker_settings() == {}


def test_a_flag_of_a_backend_that_is_not_chosen_is_refused(monkeypatch):
    arguments = parsed("--modal-image", "x")
    with pytest.raises(ConfigurationError, match="--modal-image needs --sandbox modal"):
        arguments.sandbox.worker_settings()
    monkeypatch.setenv("HERMES_QUEUE_SANDBOX_BACKEND", "modal")
    assert arguments.sandbox.worker_settings() == {"HERMES_QUEUE_MODAL_IMAGE": "x"}


@pytest.mark.parametrize("flag", ["--sandbox", "--modal-image"])
def test_where_workers_run_already_they_decide(flag):
    with pytest.raises(ConfigurationError, match=rf"{flag}: the workers of this Redis choose"):
        parsed(flag, "modal").sandbox.refuse()


@pytest.mark.parametrize("count", ["0", "many"])
def test_slots_per_sandbox_is_at_least_one(count):
    with pytest.raises(ConfigurationError, match="--modal-slots-per-sandbox"):
        parsed("--modal-slots-per-sandbox", count)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="HERMES_QUEUE_THEIRS_")
    region: int = 0


@pytest.fixture
def theirs(monkeypatch):
    module = types.ModuleType("their_backend")
    module.Theirs, module.SETTINGS = object, Settings
    module.FLAGS = (Flag("--region", "THEIRS_REGION", "where", metavar="NAME"),)
    monkeypatch.setitem(sys.modules, "their_backend", module)
    return module


def test_a_named_backend_of_your_own_brings_its_flags_and_help(theirs, capsys):
    chosen = parsed("--sandbox=their_backend:Theirs", "--region", "west").sandbox
    backend = {"HERMES_QUEUE_SANDBOX_BACKEND": "their_backend:Theirs"}
    assert chosen.worker_settings() == backend | {"THEIRS_REGION": "west"}
    with pytest.raises(SystemExit):
        parsed("--help", "--sandbox", "their_backend:Theirs")
    assert "--region NAME" in capsys.readouterr().out


def test_variables_of_a_named_backend_of_your_own_are_known_and_checked(
    theirs, monkeypatch, capsys
):
    flags = ["--dry-run", "--items", "1", "--sandbox", "their_backend:Theirs"]
    monkeypatch.setenv("HERMES_QUEUE_THEIRS_REGION", "1")
    assert main(gsm8k.PRODUCER, flags) == 0
    monkeypatch.setenv("HERMES_QUEUE_THEIRS_REGION", "west")
    assert main(gsm8k.PRODUCER, flags) == 2
    assert "HERMES_QUEUE_THEIRS_REGION: Input should be a valid integer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [("nope", "backend 'nope' is unknown"), ("their_backend:Theirs", "FLAGS: .*--items")],
)
def test_a_named_backend_that_cannot_be_used_is_a_wrong_flag(theirs, name, message, capsys):
    theirs.FLAGS = (Flag("--items", "THEIRS_ITEMS", "taken", metavar="N"),)
    assert main(gsm8k.PRODUCER, ["--sandbox", name, "--dry-run"]) == 2
    assert re.match(f"error: .*{message}", capsys.readouterr().err)


def test_flags_of_a_backend_of_your_own_are_there_where_it_is_set(monkeypatch, theirs):
    monkeypatch.setenv("HERMES_QUEUE_SANDBOX_BACKEND", "their_backend:Theirs")
    chosen = parsed("--region", "west")
    assert chosen.sandbox.worker_settings() == {"THEIRS_REGION": "west"}
    with pytest.raises(ConfigurationError, match="--region needs --sandbox their_backend:Theirs"):
        parsed("--region", "west", "--sandbox", "local").sandbox.worker_settings()
