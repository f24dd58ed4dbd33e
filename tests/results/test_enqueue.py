"""Programs of one's own send jobs: `hermes_queue.enqueue`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from celery.app.task import Context
from celery.worker.request import Request
from pydantic import BaseModel
from records import make_job
from redis_server import RedisServer

import hermes_queue
from hermes_queue import (
    AgentSpec,
    ConfigurationError,
    GroupPolicy,
    InputError,
    Limits,
    PayloadTooLarge,
    RedisUnavailable,
    make_ids,
    make_jobs,
)
from hermes_queue.bodies import codec
from hermes_queue.broker.app import app
from hermes_queue.broker.enqueue import publish_messages
from hermes_queue.ledger import DueJob, Ledger
from hermes_queue.models import JudgeSpec
from hermes_queue.queues import RUN_TRAJECTORY, queue_name, shown_name
from hermes_queue.settings.redis import broker_url

ROOT = Path(__file__).parents[2]
ROWS = [
    {"question": f"What is {n} + 1?", "answer": f"#### {n + 1}", "instance_id": f"sum-{n}"}
    for n in range(3)
]
NOP = AgentSpec(kind="nop")


def send(ledger: Ledger, items: Any = ROWS, **changes: Any) -> hermes_queue.Enqueued:
    options = {"env": "gsm8k", "run_id": "rl1", "agent": NOP, "group_size": 2, **changes}
    return hermes_queue.enqueue(items=items, url=ledger.url, **options)


def test_each_item_is_a_group_of_samples_with_ids_that_can_be_known_beforehand(
    ledger: Ledger,
) -> None:
    sent = send(ledger)
    wanted = [make_ids("rl1", row["instance_id"], n)[1] for row in ROWS for n in range(2)]
    assert sent == hermes_queue.Enqueued("rl1", tuple(wanted), enqueued=6, already=0)
    assert (ledger.run_status("rl1").total, ledger.backlog()) == (6, 6)


def test_a_call_that_is_repeated_sends_only_what_is_missing(ledger: Ledger) -> None:
    first = send(ledger, ROWS[:2])
    again = send(ledger, ROWS)
    assert (again.enqueued, again.already) == (2, 4)
    assert again.trajectory_ids[:4] == first.trajectory_ids


def test_in_each_step_the_same_items_are_new_groups(ledger: Ledger) -> None:
    ids = [send(ledger, step=step).trajectory_ids for step in (None, 1, 2, 1)]
    assert ids[1] == ids[3]
    assert len({*ids[0], *ids[1], *ids[2]}) == 18


def test_what_is_sent_is_what_workers_validate(ledger: Ledger) -> None:
    limits = Limits(max_turns=3)
    policy = GroupPolicy(extra_samples=1)
    sent = send(
        ledger, ROWS[:1], limits=limits, group_policy=policy, lane="eval", policy_version="7"
    )
    assert len(sent.trajectory_ids) == 3
    stored = ledger.client.hget(f"hq:traj:{sent.trajectory_ids[2]}", "job")
    job = codec.decode_job(stored, sent.trajectory_ids[2])
    assert (job.item, job.limits, job.group_policy) == (ROWS[0], limits, policy)
    assert (job.lane, job.policy_version, job.sample_index) == ("eval", "7", 2)
    assert job.producer.producer == "hermes_queue.enqueue"


class Row(BaseModel):
    question: str
    instance_id: str = ""


def test_items_may_be_models_and_need_no_id(ledger: Ledger) -> None:
    rows = [Row(question="a"), Row(question="b"), Row(question="a")]
    one, two = (
        make_jobs(env="gsm8k", items=rows, run_id="r"),
        make_jobs(env="gsm8k", items=[row.model_dump() for row in rows], run_id="r"),
    )
    assert one == two
    assert len({job.group_id for job in one}) == 3, "an item that comes twice has two groups"
    assert one[0].instance_id == one[2].instance_id
    assert send(ledger, rows, run_id=None).run_id.startswith("gsm8k-")


def test_jobs_of_ones_own_are_sent_as_they_are(ledger: Ledger) -> None:
    jobs = [make_job("mine", "a", n, 2) for n in range(2)]
    sent = hermes_queue.enqueue(iter(jobs), url=ledger.url, config={"lr": 1})
    assert sent.trajectory_ids == tuple(job.trajectory_id for job in jobs)
    with pytest.raises(ConfigurationError, match=r"lr 1 .now 2."):
        hermes_queue.enqueue(jobs, url=ledger.url, config={"lr": 2})


def test_a_run_keeps_its_configuration(ledger: Ledger) -> None:
    send(ledger)
    with pytest.raises(ConfigurationError, match=r'agent "nop" .now "oracle".'):
        send(ledger, step=2, agent=AgentSpec(kind="oracle"))
    with pytest.raises(ConfigurationError, match="another group size"):
        send(ledger, group_size=3)
    assert ledger.run_status("rl1").total == 6


def test_two_judges_under_one_run_id_are_refused_as_for_producers(ledger: Ledger) -> None:
    judge = JudgeSpec(model="judge", prompt="Is it polite?")
    send(ledger, judge=judge)
    with pytest.raises(ConfigurationError, match="judge"):
        send(ledger, step=2, judge=judge.model_copy(update={"prompt": "Is it short?"}))


def test_a_refusal_speaks_of_the_run_and_has_no_chain_of_causes(ledger: Ledger) -> None:
    send(ledger)
    with pytest.raises(ConfigurationError, match=r"^run 'rl1' was begun with") as refused:
        send(ledger, step=2, agent=AgentSpec(kind="oracle"))
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


@pytest.mark.parametrize(
    ("changes", "error", "expected"),
    [
        ({"run_id": "a/b"}, ConfigurationError, "run_id"),
        ({"run_id": "a" * 201}, ConfigurationError, "200"),
        ({"run_id": " x"}, ConfigurationError, "run_id"),
        ({"lane": "no lane"}, ConfigurationError, "lane"),
        ({"priority": 10}, ConfigurationError, "priority"),
        ({"agent": {"kindd": "nop"}}, ConfigurationError, "agent.kindd"),
        ({"group_sizee": 3}, ConfigurationError, "group_sizee"),
        ({"items": [{"x": {1}}]}, InputError, "item 0"),
        ({"items": ["text"]}, InputError, "item 0"),
        ({"items": [{"instance_id": "a", "n": n} for n in (1, 2)]}, InputError, "item 1"),
        ({"items": [{"x": "y" * (5 << 20)}]}, PayloadTooLarge, "ITEM_MAX_BYTES"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_sent(
    ledger: Ledger, changes: dict[str, Any], error: type[Exception], expected: str
) -> None:
    with pytest.raises(error, match=expected):
        send(ledger, **changes)
    assert ledger.client.keys("hq:traj:*") == []


def test_jobs_and_items_at_once_are_refused(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="pass jobs"):
        hermes_queue.enqueue([make_job()], env="gsm8k", items=ROWS, url=ledger.url)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="pass jobs"):
        hermes_queue.enqueue(url=ledger.url)  # type: ignore[call-overload]


def test_a_wrong_setting_is_an_error_and_no_exit(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PRODUCER_BATCHES", "7")
    with pytest.raises(ConfigurationError, match="HERMES_QUEUE_PRODUCER_BATCH"):
        send(ledger)


def test_a_redis_that_is_gone_is_told(redis_server: RedisServer, ledger: Ledger) -> None:
    redis_server.kill9()
    with pytest.raises(RedisUnavailable):
        send(ledger)


def test_a_full_backlog_is_waited_for_and_told(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PRODUCER_BACKLOG_MAX", "4")
    monkeypatch.setenv("HERMES_QUEUE_PRODUCER_BATCH", "2")
    waits: list[int] = []

    def enough(waiting: int) -> None:
        waits.append(waiting)
        raise TimeoutError("that is enough")

    with pytest.raises(TimeoutError):
        send(ledger, on_full=enough)
    assert waits == [4]
    ledger.client.delete("hq:v1.train", *ledger.client.keys("hq:v1.train*"), "hq:waiting")
    assert send(ledger).already == 4


async def test_beside_an_event_loop_it_waits_in_a_thread_and_can_be_cancelled(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"env": "gsm8k", "items": ROWS, "run_id": "rl1", "agent": NOP}
    sent = await hermes_queue.enqueue_async(**options, url=ledger.url)
    assert sent.enqueued == 3
    monkeypatch.setenv("HERMES_QUEUE_PRODUCER_BACKLOG_MAX", "3")
    full = asyncio.Event()
    loop = asyncio.get_running_loop()
    waiting = asyncio.create_task(
        hermes_queue.enqueue_async(
            **options, step=2, url=ledger.url, on_full=lambda _: loop.call_soon_threadsafe(full.set)
        )
    )
    await full.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def written_by_celery(ledger: Ledger, job: DueJob) -> None:
    """The job's message, with every field that Celery would give it."""
    options = {"global_keyprefix": ledger.prefix, "body_encoding": "utf-8"}
    with (
        app.connection_for_write(broker_url(ledger.url), transport_options=options) as broker,
        app.amqp.Producer(broker) as producer,
    ):
        app.send_task(
            RUN_TRAJECTORY,
            args=[job.trajectory_id, job.attempt],
            task_id=job.task_id,
            queue=queue_name(job.lane),
            priority=job.priority,
            argsrepr=job.label,
            shadow=shown_name(job.env),
            kwargsrepr="",
            ignore_result=True,
            producer=producer,
        )


def as_a_worker_reads_it(ledger: Ledger, raw: bytes) -> dict[str, Any]:
    """What Celery makes of a message, as far as it does not differ from message to message."""
    with app.connection_for_read(broker_url(ledger.url)) as broker:
        message = broker.default_channel.message_to_python(json.loads(raw))
        request = Request(message, app=app, task=app.tasks["celery.backend_cleanup"])
        names = ("id", "name", "type", "args", "kwargs", "eta", "expires")
        names += ("ignore_result", "argsrepr", "kwargsrepr", "delivery_info", "stamps", "groups")
        names += ("replaced_task_nesting", "errbacks", "chord", "group", "group_index")
        context = Context(request.request_dict, called_directly=False)
        seen = {name: getattr(request, name) for name in names}
        seen["time_limits"] = [*request.time_limits]
        return seen | {name: getattr(context, name) for name in ("retries", "callbacks", "chain")}


@pytest.mark.parametrize("priority", [0, 2, 3, 5, 9])
def test_a_worker_reads_the_message_that_celery_would_write(ledger: Ledger, priority: int) -> None:
    job = DueJob("r.abc.0", 1, "eval", priority, "my.envs:ENV", "an instance, named ünusually")
    found = []
    for publish in (written_by_celery, lambda ledger, job: publish_messages(ledger, [job])):
        publish(ledger, job)
        keys = sorted(ledger.client.keys("hq:*"))
        [key] = [each for each in keys if each.startswith(b"hq:v1.")]
        [message] = ledger.client.lrange(key, 0, -1)
        bindings = [ledger.client.smembers(each) for each in keys if b"binding" in each]
        found.append((key, as_a_worker_reads_it(ledger, message), bindings))
        ledger.client.flushall()
    assert found[0] == found[1]


def test_messages_have_tags_of_their_own_and_no_words_to_spare(ledger: Ledger) -> None:
    jobs = [DueJob(f"r.abc.{n}", 1, "eval", 5, "gsm8k", "i") for n in range(3)]
    publish_messages(ledger, jobs)
    publish_messages(ledger, jobs)
    messages = ledger.client.lrange("hq:v1.eval\x06\x163", 0, -1)
    assert [json.loads(m)["headers"]["id"] for m in reversed(messages)][:3] == [
        "r.abc.0.1",
        "r.abc.1.1",
        "r.abc.2.1",
    ]
    assert len({json.loads(m)["properties"]["delivery_tag"] for m in messages}) == 6
    assert max(map(len, messages)) < 400


def test_sending_and_reading_load_no_celery(ledger: Ledger) -> None:
    code = (
        "import sys, hermes_queue\n"
        "hermes_queue.enqueue(env='gsm8k', items=[{'question': '?'}], url=sys.argv[1])\n"
        "print(sorted({'celery', 'kombu', 'openai', 'envs'} & set(sys.modules)))"
    )
    command = [sys.executable, "-W", "error", "-c", code, ledger.url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert ledger.backlog() == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"env": "a" * 257 + ":x"}, "env: String should have at most 256"),
        ({"policy_version": "v" * 513}, "policy_version: String should have at most 512"),
        ({"items": [{"instance_id": "i" * 4097}]}, "instance_id: String should have at most 4096"),
    ],
    ids=["env", "policy", "id"],
)
def test_a_text_of_a_job_that_is_too_long_is_refused_by_its_name(
    options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        make_jobs(**{"run_id": "r", "env": "gsm8k", "items": ROWS[:1], **options})


@pytest.mark.parametrize("field", ["model", "base_url"])
def test_a_model_or_address_that_is_too_long_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        AgentSpec(**{field: "x" * 8193})


@pytest.mark.parametrize("field", ["sampling", "params"])
def test_a_job_that_is_too_large_is_refused(redis_server: RedisServer, field: str) -> None:
    agent = AgentSpec(kind="nop", **{field: {"x": "y" * (256 << 10)}})
    with pytest.raises(PayloadTooLarge, match="shorten sampling and params"):
        hermes_queue.enqueue(env="gsm8k", items=ROWS[:1], agent=agent, url=redis_server.url)


def test_an_item_that_nests_too_deep_is_an_input_error() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(InputError, match=r"item 0 .* nested too deep"):
        make_jobs(env="gsm8k", items=[{"instance_id": "a", "x": deep}])
