"""The operator's key goes to the operator's endpoints, whatever a job names."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from chat_endpoint import ChatEndpoint, Raw, completion
from records import make_job, make_record

from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.agent.endpoint.choice import OwnEndpoints, is_within
from hermes_queue.agent.tokens.rescore import rescore_at
from hermes_queue.errors import ConfigurationError, ModelConfigError, ModelError
from hermes_queue.models import AgentSpec, Message, TokenSequence, Turn
from hermes_queue.settings import ModelSettings, check_environment
from producers.run.launch import own_endpoints

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

USER = Message(role="user", content="hello")
KEY = "sk-of-the-workers-0123456789"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_queue.agent.endpoint.errors.BACKOFF_S", 0.001)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def thief() -> AsyncIterator[ChatEndpoint]:
    """An endpoint that only the job names."""
    async with ChatEndpoint(lambda path, body: completion()) as server:
        yield server


async def ask(named: str | None, **settings: Any) -> None:
    async def no_gold() -> Any:
        raise AssertionError("only the oracle asks")

    spec = AgentSpec(kind="openai", model="m", base_url=named, params={"probe_tools": False})
    section = ModelSettings(api_key=KEY, max_retries=0, **settings)
    chat = make_chat(spec, AgentScript(oracle=no_gold), section)
    await chat.complete([USER], [], {}, time.monotonic() + 60)


async def test_a_job_cannot_have_the_key_sent_to_an_endpoint_of_its_own(
    thief: ChatEndpoint,
) -> None:
    with pytest.raises(ModelConfigError, match="HERMES_QUEUE_MODEL_TRUSTED_URLS"):
        await ask(thief.url, base_url="http://127.0.0.1:9/v1")
    assert thief.heads == []


async def test_one_strange_endpoint_among_several_is_refused_too(thief: ChatEndpoint) -> None:
    own = "http://127.0.0.1:9/v1"
    with pytest.raises(ModelConfigError, match=str(thief.port)):
        await ask(f"{own},{thief.url}", base_url=own)


async def test_where_others_are_allowed_they_get_no_key(thief: ChatEndpoint) -> None:
    await ask(thief.url, base_url="http://127.0.0.1:9/v1", other_urls="without_key")
    [head] = thief.heads
    assert KEY not in head
    assert "bearer none" in head


async def test_an_endpoint_that_the_operator_trusts_gets_the_key(thief: ChatEndpoint) -> None:
    await ask(thief.url, base_url="http://127.0.0.1:9/v1", trusted_urls=thief.url)
    assert f"bearer {KEY}" in thief.heads[0]


async def test_the_operators_own_endpoint_may_be_named(thief: ChatEndpoint) -> None:
    await ask(thief.url, base_url=f"http://127.0.0.1:9/v1, {thief.url}")
    assert f"bearer {KEY}" in thief.heads[0]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_an_endpoint_cannot_point_to_another_one(thief: ChatEndpoint, status: int) -> None:
    away = Raw(b"{}", status=status, headers={"Location": f"{thief.url}/chat/completions"})
    async with ChatEndpoint(lambda path, body: away) as own:
        with pytest.raises(ModelConfigError, match="name the endpoint that answers itself"):
            await ask(None, base_url=own.url)
    assert thief.heads == []


def test_a_refusal_does_not_repeat_a_password_of_the_url() -> None:
    own = OwnEndpoints.of(ModelSettings(base_url="http://own/v1"))
    with pytest.raises(ModelConfigError) as caught:
        own.allowed("http://user:hunter2@elsewhere/v1")
    assert "elsewhere" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_without_an_endpoint_of_ones_own_openais_may_be_named() -> None:
    own = OwnEndpoints.of(ModelSettings(api_key=KEY))
    assert own.key_for("https://api.openai.com/v1") == KEY
    assert own.key_for("http://api.openai.com/v1") == "none"


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_records_own_endpoint_gets_the_key_only_where_it_is_trusted(
    thief: ChatEndpoint, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    if trusted:
        monkeypatch.setenv("HERMES_QUEUE_MODEL_TRUSTED_URLS", thief.url)
    changes = {
        "agent": AgentSpec(kind="openai", model="m"),
        "turns": (Turn(server=thief.url, server_version="vllm 1"),),
        "sequences": (TokenSequence(ids=(1, 2), loss_mask=(0, 1), logprobs=(0.0, -1.0)),),
    }
    record = make_record(make_job()).model_copy(update=changes)
    with pytest.raises(ModelError, match="prompt_logprobs"):
        await rescore_at(record, api_key=KEY)
    assert all((KEY in head) == trusted for head in thief.heads)
    assert thief.heads


TRUSTED = "https://good.example/v1"


@pytest.mark.parametrize(
    "url",
    [
        TRUSTED,
        f"{TRUSTED}/",
        "https://good.example:443/v1",
        "HTTPS://Good.Example/v1",
        "https://user:pw@good.example/v1",
        f"{TRUSTED}/team",
    ],
)
def test_the_place_and_what_is_below_it_are_within(url: str) -> None:
    assert is_within(url, TRUSTED)


@pytest.mark.parametrize(
    "url",
    [
        "http://good.example/v1",
        "https://good.example:8443/v1",
        "https://good.example.evil/v1",
        "https://evil.example/v1",
        "https://good.example@evil.example/v1",
        "https://good.example%2f@evil.example/v1",
        "https://evil.example/@good.example/v1",
        "https://good.example/v1/@evil.example/v1",
        "https://evil.example\\@good.example/v1",
        "https://evil.example#@good.example/v1",
        "https://evil.example?@good.example/v1",
        "https://good.example\t.evil.example/v1",
        "https://good.example\n/v1",
        "https://good.example./v1",
        "https://good.example/v10",
        "https://good.example/",
        "https://good.example/V1",
        "https://good.example/v1/../admin",
        "https://good.example/v1/./x",
        "https://good.example/v1/%2e%2e/admin",
        "https://good.example/v1//x",
        "https://good.example/v1?x=1",
        "https://gооd.example/v1",  # noqa: RUF001 - letters of another alphabet
        "//good.example/v1",
        "good.example/v1",
        "file:///v1",
        "",
    ],
)
def test_what_only_looks_like_the_place_is_not(url: str) -> None:
    assert not is_within(url, TRUSTED)


def test_a_place_without_a_path_holds_all_paths() -> None:
    assert is_within("http://[::1]:8000/v1", "http://[::1]:8000")
    assert not is_within("http://[::1]:80000/v1", "http://[::1]:8000")


def test_a_worker_of_ones_own_trusts_ones_own_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_QUEUE_MODEL_TRUSTED_URLS", "http://c/v1")
    made = own_endpoints("http://a/v1,http://b/v1")
    assert made == {"HERMES_QUEUE_MODEL_TRUSTED_URLS": "http://a/v1,http://b/v1,http://c/v1"}
    monkeypatch.setenv(*made.popitem())
    own = OwnEndpoints.of(ModelSettings())
    assert own.allowed("http://a/v1,http://b/v1") == ("http://a/v1", "http://b/v1")


def test_a_trusted_url_without_a_scheme_is_a_wrong_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_MODEL_TRUSTED_URLS", "good.example")
    with pytest.raises(ConfigurationError, match="HERMES_QUEUE_MODEL_TRUSTED_URLS"):
        check_environment()
