"""Which version of a policy served a turn, and what the record says of it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from chat_endpoint import Answer, ChatEndpoint, Raw, completion
from records import make_job

from hermes_queue.agent import AgentResult, AgentScript, make_chat
from hermes_queue.errors import ConfigurationError, ModelConfigError
from hermes_queue.models import AgentSpec, Message, Turn
from hermes_queue.policy import oldest_number, span, version_number
from hermes_queue.settings import ModelSettings
from producers.base import Producer
from producers.run.options import parse
from producers.run.plan import make_plan
from workers.draft import Draft
from workers.record import record_of

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

USER = Message(role="user", content="hello")


async def served(answer: Answer, *, wanted: str | None = None, calls: int = 1, **params: Any):
    """The replies of a server that always gives `answer`, and the heads of the requests."""

    async def no_gold() -> Any:
        raise AssertionError("only the oracle asks")

    async with ChatEndpoint(lambda path, body: answer) as endpoint:
        spec = AgentSpec(kind="openai", model="m", base_url=endpoint.url, params=params)
        script = AgentScript(oracle=no_gold, policy_version=wanted)
        chat = make_chat(spec, script, ModelSettings(trusted_urls=endpoint.url))
        replies = [await chat.complete([USER], [], {}, time.monotonic() + 60) for _ in range(calls)]
        return replies, endpoint.heads


BODY = json.dumps(completion()[1]).encode()


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        (completion(top={"metadata": {"weight_version": "12"}}), "12"),
        (completion(top={"weight_version": 12}), "12"),
        (completion(top={"weight_version": [12]}), "[12]"),
        (completion(meta_info={"weight_version": "step-12"}), "step-12"),
        (Raw(BODY, headers={"X-Policy-Version": "12"}), "12"),
        (Raw(BODY, headers={"x-weight-version": "12"}), "12"),
        (completion(top={"metadata": None}), None),
        (completion(top={"model": "policy-12"}), None),
    ],
    ids=["sglang", "top", "not a text", "meta_info", "header", "other header", "none", "model"],
)
async def test_the_version_that_a_server_tells_is_on_the_turn(
    answer: Answer, version: str | None
) -> None:
    [reply], _ = await served(answer)
    assert reply.turn.policy_version == version


async def test_the_model_that_answered_is_the_version_where_asked_for() -> None:
    answer = completion(top={"model": "policy-12", "weight_version": "3"})
    [reply], _ = await served(answer, policy_version="model")
    assert reply.turn.policy_version == "policy-12"
    with pytest.raises(
        ModelConfigError, match=r"policy_version: .*'server' or 'model', not 'header'"
    ):
        await served(answer, policy_version="header")


async def test_the_requested_version_is_sent_with_each_request_and_a_mismatch_recorded_once() -> (
    None
):
    answer = Raw(BODY, headers={"X-Policy-Version": "11"})
    replies, heads = await served(answer, wanted="12", calls=2)
    assert all("x-policy-version: 12" in head for head in heads)
    assert [reply.events for reply in replies] == [
        ({"event": "policy_mismatch", "wanted": "12", "served": "11"},),
        (),
    ]


async def test_without_a_requested_version_nothing_is_sent_or_recorded() -> None:
    [reply], [head] = await served(Raw(BODY, headers={"X-Policy-Version": "11"}))
    assert (reply.events, "x-policy-version" in head) == ((), False)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12),
        ("step-1200", 1200),
        ("qwen3-8b/global_step_7", 7),
        ("default", None),
        ("v2-rc", None),
        ("", None),
        (None, None),
        ("9" * 16, None),
    ],
)
def test_a_version_is_compared_by_the_number_at_its_end(
    text: str | None, number: int | None
) -> None:
    assert version_number(text) == number


def turns(*versions: str | Turn | None) -> list[Turn]:
    return [each if isinstance(each, Turn) else Turn(policy_version=each) for each in versions]


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        (("9", "10", "10"), ("9", "10")),
        (("step-3", None), ("step-3", "step-3")),
        (("blue", "green"), ("blue", "green")),
        ((None,), (None, None)),
        ((), (None, None)),
        (("12", Turn(policy_version="11", policy_spans=(("9", 0), ("11", 4)))), ("9", "12")),
    ],
)
def test_oldest_and_newest_of_a_trajectory(
    versions: tuple[str | Turn | None, ...], found: tuple[str | None, str | None]
) -> None:
    assert span(turns(*versions)) == found


@pytest.mark.parametrize(
    ("versions", "begun", "number"),
    [
        (("9", "10"), 3, 9),
        (("9", None), 3, 3),
        ((None, "9"), 11, 9),
        ((None,), None, None),
        (("9", "default"), None, None),
        ((), 3, None),
        ((Turn(policy_version="9", policy_spans=(("7", 0), ("9", 4))),), 8, 7),
        ((Turn(policy_version="9", policy_spans=(("default", 0), ("9", 4))),), 8, 8),
    ],
)
def test_a_turn_of_no_known_version_is_as_old_as_the_attempt(
    versions: tuple[str | Turn | None, ...], begun: int | None, number: int | None
) -> None:
    draft = Draft(job=make_job(policy_version="8"), attempt=1, epoch=1, policy_begun=begun)
    draft.agent = AgentResult(turns=turns(*versions), stop_reason="no_tool_call")
    from envs.base import Verdict

    draft.verdict = Verdict(score=1.0)
    record = record_of(draft, owner="w", host="h")
    assert oldest_number(record) == number
    assert (record.policy_version, record.policy_begun) == ("8", begun)
    assert (record.policy_oldest, record.policy_newest) == span(record.turns)


# --- producers --------------------------------------------------------------------------

PRODUCER = Producer(name="sums", env="sums_env:ENV", description="Sums.")


def plan(*flags: str) -> Any:
    from envs.base import load_env

    return make_plan(PRODUCER, load_env("sums_env:ENV"), parse(PRODUCER, flags))


def test_the_flags_of_a_bound_become_the_groups_policy() -> None:
    made = plan("--max-policy-lag", "2", "--on-stale", "requeue", "--policy-version", "7")
    policy = made._policy(8)
    assert (policy.max_policy_lag, policy.on_stale, policy.max_requeues) == (2, "requeue", 8)
    assert made.options.run.policy_version == "7"
    assert "policy_version" not in made.config("d"), "a run goes on with later versions"
    assert plan("--max-policy-lag", "2")._policy(8).max_requeues == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--on-stale", "drop"), "without --max-policy-lag"),
        (("--max-policy-lag", "1", "--max-requeues", "3"), "--on-stale requeue"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plan(*flags)
