"""What model calls cost."""

from __future__ import annotations

import asyncio

import pytest

from hermes_queue.agent.prices import cost_usd, read_prices
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import Usage
from workers.lifecycle import open_runtime


@pytest.fixture
def table(tmp_path):
    def write(text):
        path = tmp_path / "prices.toml"
        path.write_text(text)
        return path

    yield write
    read_prices.cache_clear()


USAGE = Usage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=100_000)


def test_cached_tokens_have_a_price_of_their_own(table):
    path = table("[m]\nprompt = 2\ncached = 0.5\ncompletion = 10\n")
    assert cost_usd("m", USAGE, path) == 0.6 * 2 + 0.4 * 0.5 + 0.1 * 10


def test_without_such_a_price_they_cost_what_the_prompt_does(table):
    assert cost_usd("m", USAGE, table("[m]\nprompt = 2\ncompletion = 10\n")) == 3.0


def test_an_unknown_model_has_no_cost_rather_than_none_at_all(table):
    path = table("[m]\nprompt = 2\ncompletion = 10\n")
    assert cost_usd("other", USAGE, path) is None
    assert cost_usd("m", USAGE, None) is None


def test_no_tokens_cost_nothing_whatever_the_model():
    assert cost_usd(None, Usage(), None) == 0.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[m]\nprompt = -1\ncompletion = 1\n", "m.prompt: Input should be greater"),
        ("[m]\nprompt = 1e400\ncompletion = 1\n", "m.prompt: Input should be less"),
        ("[m]\nprompt = 1\n", "m.completion: Field required"),
        ("[m]\nprompt = 1\ncompletion = 1\noutput = 3\n", "m.output: Extra inputs"),
        ("prompt = [", "HERMES_QUEUE_MODEL_PRICES"),
    ],
)
def test_a_wrong_table_names_file_and_field(table, text, problem):
    with pytest.raises(ConfigurationError, match=problem):
        read_prices(table(text))


def test_a_worker_does_not_start_with_a_wrong_table(tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_MODEL_PRICES", str(tmp_path / "absent.toml"))
    with pytest.raises(ConfigurationError, match=r"absent.toml: No such file"):
        asyncio.run(open_runtime())
