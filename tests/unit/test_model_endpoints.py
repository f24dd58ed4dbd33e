"""Which of several endpoints a trajectory talks to."""

from __future__ import annotations

from collections import Counter

import pytest

from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.agent.endpoint.chat import OpenAIChat
from hermes_queue.agent.endpoint.choice import choose_endpoint, split_urls
from hermes_queue.models import AgentSpec, ToolCall
from hermes_queue.settings import ModelSettings

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

URLS = ("http://a/v1", "http://b/v1", "http://c/v1")


async def no_gold() -> tuple[list[ToolCall], str]:
    raise AssertionError("a model must not see the gold answer")


def endpoint_of(group: str, failures: int = 0, *, job: str | None, setting: str | None) -> str:
    script = AgentScript(oracle=no_gold, group_id=group, endpoint_failures=failures)
    settings = ModelSettings(base_url=setting, trusted_urls=job)
    chat = make_chat(AgentSpec(kind="openai", model="m", base_url=job), script, settings)
    assert isinstance(chat, OpenAIChat)
    return chat._server


def test_the_samples_of_a_group_meet_at_one_endpoint() -> None:
    assert len({choose_endpoint(URLS, "group", 0) for _ in range(5)}) == 1


def test_groups_are_spread_over_all_endpoints() -> None:
    used = Counter(choose_endpoint(URLS, f"group{n}", 0) for n in range(300))
    assert set(used) == set(URLS)
    assert min(used.values()) > 60


def test_the_order_in_which_endpoints_are_listed_does_not_matter() -> None:
    for n in range(20):
        assert choose_endpoint(URLS, str(n), 0) == choose_endpoint(URLS[::-1], str(n), 0)


def test_a_group_stays_where_it_is_when_another_endpoint_goes() -> None:
    for n in range(50):
        chosen = choose_endpoint(URLS, str(n), 0)
        remaining = [url for url in URLS if url == chosen or url == URLS[n % 3]]
        assert choose_endpoint(remaining, str(n), 0) == chosen


def test_each_failure_of_an_endpoint_moves_on_to_another() -> None:
    assert {choose_endpoint(URLS, "group", failures) for failures in range(3)} == set(URLS)
    assert choose_endpoint(URLS, "group", 3) == choose_endpoint(URLS, "group", 0)


def test_the_job_may_name_several_endpoints_and_so_may_the_setting() -> None:
    listed = ", ".join(URLS)
    for job, setting in [(listed, "http://x/v1"), (None, listed)]:
        used = {endpoint_of("group", n, job=job, setting=setting) for n in range(3)}
        assert used == set(URLS)


@pytest.mark.parametrize("text", [None, "", " , "])
def test_a_list_without_endpoints_is_empty(text: str | None) -> None:
    assert split_urls(text) == ()
