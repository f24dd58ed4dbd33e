"""Producer flags that choose sandboxes: settings of the worker that the producer starts."""

from __future__ import annotations

import importlib

import pytest

from hermes_queue.errors import ConfigurationError
from hermes_queue.settings import variable_names
from producers.run import sandbox_flags
from producers.run.flags import build_parser

PRODUCERS = ("gsm8k", "swe_smith")


def parsed(*flags, producer="swe_smith"):
    module = importlib.import_module(f"producers.{producer}")
    return build_parser(module.PRODUCER).parse_args(list(flags))


@pytest.mark.parametrize("producer", PRODUCERS)
def test_every_producer_has_them_and_they_become_settings(producer):
    flags = "--sandbox modal --modal-image python:3.11 --modal-slots-per-sandbox 10"
    arguments = parsed(*flags.split(), "--modal-min-sandboxes", "1", producer=producer)
    settings = sandbox_flags.worker_settings(arguments)
    assert settings == {
        "HERMES_QUEUE_SANDBOX_BACKEND": "modal",
        "HERMES_QUEUE_MODAL_IMAGE": "python:3.11",
        "HERMES_QUEUE_MODAL_SLOTS_PER_SANDBOX": "10",
        "HERMES_QUEUE_MODAL_MIN_SANDBOXES": "1",
    }
    assert set(settings) <= set(variable_names())


def test_without_flags_the_environment_decides():
    assert sandbox_flags.worker_settings(parsed()) == {}


def test_a_flag_of_a_backend_that_is_not_chosen_is_refused(monkeypatch):
    arguments = parsed("--modal-image", "x")
    with pytest.raises(ConfigurationError, match="--modal-image needs --sandbox modal"):
        sandbox_flags.worker_settings(arguments)
    monkeypatch.setenv("HERMES_QUEUE_SANDBOX_BACKEND", "modal")
    assert sandbox_flags.worker_settings(arguments) == {"HERMES_QUEUE_MODAL_IMAGE": "x"}


@pytest.mark.parametrize("flag", ["--sandbox", "--modal-image"])
def test_where_workers_run_already_they_decide(flag):
    with pytest.raises(ConfigurationError, match=rf"{flag}: the workers of this Redis choose"):
        sandbox_flags.refuse(parsed(flag, "modal"))


@pytest.mark.parametrize("count", ["0", "many"])
def test_slots_per_sandbox_is_at_least_one(count, capsys):
    with pytest.raises(SystemExit):
        parsed("--modal-slots-per-sandbox", count)
    assert "--modal-slots-per-sandbox" in capsys.readouterr().err
