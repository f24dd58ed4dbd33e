"""Actions on a real Redis with the users that we ship: what is met, done, refused and recorded."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from guarded_redis import GuardedRedis
from records import make_job
from redis_server import redis_binary_of
from view_server import OPERATE_TOKEN, VIEW_TOKEN, Said, ViewServer

from hermes_plugins.view.actions import ACTIONS
from hermes_plugins.view.transcripts import Transcripts
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.broker.pool import remote_control
from hermes_queue.cli import cli
from hermes_queue.ledger import Breakers, DeadLetters, Ledger, Runs

pytestmark = pytest.mark.xdist_group("view")
WORKER = "celery@host"
LETTERS = 3


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRedis]:
    binaries = str(Path(redis_binary_of("redis-7")).parent)
    server = GuardedRedis(tmp_path_factory.mktemp("acl"), binaries)
    try:
        yield server.start()
    finally:
        server.close()


@contextmanager
def ledger_of(guarded: GuardedRedis, role: str) -> Iterator[Ledger]:
    with closing(Ledger.connect(guarded.url(role), timeout_s=10)) as ledger:
        yield ledger


@pytest.fixture
def operator(guarded: GuardedRedis) -> Iterator[Ledger]:
    """A deployment: a run with two jobs, a worker, dead letters of it."""
    with ledger_of(guarded, "operator") as ledger:
        for key in ledger.client.scan_iter("hq:*"):
            ledger.client.delete(key)
        enqueue([make_job("run", f"i{n}") for n in range(2)], ledger=ledger)
        facts = {"name": WORKER, "running": 7, "lanes": ["train"], "beat_s": 60}
        ledger.client.zadd("hq:workers", {"owner": 1e12})
        ledger.client.set("hq:worker:owner", json.dumps(facts), px=60_000)
        for n in range(LETTERS):
            job = make_job("old", f"d{n}")
            cause = "poison" if n else "env_bug"
            letter: Any = {"cause": cause, "reason": "killed it", "run_id": "old", "env": "gsm8k"}
            letter |= {"trajectory_id": job.trajectory_id, "job": job.model_dump_json()}
            ledger.client.xadd("hq:dead", letter)
        yield ledger


@pytest.fixture
def viewer(guarded: GuardedRedis) -> Iterator[Ledger]:
    with ledger_of(guarded, "viewer") as ledger:
        yield ledger


@pytest.fixture
def served(server, operator, viewer, guarded) -> Iterator[ViewServer]:
    """Pages that read as `viewer` and act as `operator`."""
    with serving(server, viewer, guarded.url("operator")) as made:
        yield made


@contextmanager
def serving(server, ledger: Ledger, url: str | None, **more: Any) -> Iterator[ViewServer]:
    site = replace(
        server.site,
        ledger=ledger,
        actions=True,
        operator_url=url,
        transcripts=Transcripts(ledger, url),
    )
    with closing(ViewServer(replace(site, **more))) as made:
        yield made


def act(served: ViewServer, name: str, *, token: str = OPERATE_TOKEN, **body: Any) -> Said:
    return served.post(f"/api/actions/{name}", body, token=token)


def state(ledger: Ledger) -> dict[bytes, bytes]:
    """All that Redis holds."""
    client: Any = ledger.client
    return {key: client.dump(key) for key in client.scan_iter("hq:*")}


def every_action(operator: Ledger) -> dict[str, dict[str, Any]]:
    """Arguments for each action, in the deployment of these tests."""
    name = make_job("run", "i0").trajectory_id
    of_run = {"run": "run"}
    found: dict[str, dict[str, Any]] = {
        "run_pause": of_run,
        "run_resume": of_run,
        "run_cancel": {**of_run, "confirm": "run"},
        "run_purge": {"run": "gone", "confirm": "gone"},
        "run_budget": {**of_run, "budget_usd": "20"},
        "run_retry": of_run,
        "lane_pause": {"lane": "train"},
        "lane_resume": {"lane": "train"},
        "worker_pause": {"worker": WORKER},
        "worker_resume": {"worker": WORKER},
        "worker_drain": {"worker": WORKER},
        "worker_size": {"worker": WORKER, "concurrency": 3},
        "trajectory_stop": {"trajectory": name},
        "dead_requeue": {"q": "cause:poison"},
        "dead_purge": {"q": "", "confirm": "purge"},
    }
    assert found.keys() == ACTIONS.keys()
    return found


def prepare(operator: Ledger) -> None:
    """Make of the deployment what each action has something to do in."""
    enqueue([make_job("gone", "i")], ledger=operator)
    Runs(operator).cancel("gone")
    letter = next(DeadLetters(operator).find())
    operator.client.xadd("hq:dead", {**letter.fields, "run_id": "run"})
    operator.client.hset("hq:lane:train", "state", "open")


def test_each_action_is_refused_by_redis_under_the_user_of_the_pages(
    server, operator, viewer, guarded
):
    prepare(operator)
    before = state(operator)
    with serving(server, viewer, guarded.url("viewer")) as served:
        for name, body in every_action(operator).items():
            said = act(served, name, **body)
            assert (name, said.status) == (name, 403), said.body
            assert "Redis does not let" in said.json["error"]
            assert "HERMES_QUEUE_VIEW_OPERATOR_REDIS_URL" in said.json["hint"]
    assert state(operator) == before


def test_a_wrong_password_of_the_operator_is_named(server, operator, viewer, guarded):
    wrong = guarded.url("operator").replace("operator-", "another-")
    with serving(server, viewer, wrong) as served:
        said = act(served, "run_pause", run="run")
    assert (said.status, "VIEW_OPERATOR_REDIS_URL" in said.json["hint"]) == (403, True)
    assert "another-" not in said.body.decode()


def test_each_action_can_be_counted_under_the_user_of_the_pages(served, operator):
    prepare(operator)
    before = state(operator)
    for name, body in every_action(operator).items():
        said = act(served, name, dry_run=True, reason="it's late", **body)
        assert (name, said.status) == (name, 200), said.body
        assert said.json["met"] > 0
        assert said.json["done"] == 0
        is_a_command(said.json["command"])
    assert state(operator) == before


def is_a_command(line: str) -> None:
    """Our command line takes these words."""
    program, *words = shlex.split(line)
    assert program == "hermes-queue"
    command: Any = cli
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
    command.make_context(line, words)


@pytest.mark.parametrize("token", [VIEW_TOKEN, ""])
def test_who_only_looks_may_not_even_count(served, operator, token):
    before = state(operator)
    for name, body in every_action(operator).items():
        for dry_run in (True, False):
            said = act(served, name, token=token, dry_run=dry_run, **body)
            assert said.status == (403 if token else 401)
    assert served.get("/api/actions", token).status == (403 if token else 401)
    assert state(operator) == before


def test_without_actions_nobody_may(server, operator, viewer, guarded):
    with serving(server, viewer, guarded.url("operator"), actions=False) as served:
        assert act(served, "run_pause", run="run").status == 403
        assert served.get("/api/actions", OPERATE_TOKEN).status == 403
    assert Runs(operator).get("run").state == "active"


def test_nothing_is_done_to_another_deployment_than_the_one_that_is_shown(
    server, operator, viewer, guarded
):
    elsewhere = guarded.url("operator").replace("/0", "/1")
    with closing(Ledger.connect(elsewhere, timeout_s=10)) as other:
        enqueue([make_job("run", "i")], ledger=other)
        with serving(server, viewer, elsewhere) as served:
            said = act(served, "run_cancel", run="run", confirm="run")
        assert (said.status, "another deployment" in said.json["error"]) == (409, True)
        assert Runs(other).get("run").state == "active"


def test_the_list_names_every_action_and_its_arguments(served):
    listed = {
        each["name"]: each for each in served.get("/api/actions", OPERATE_TOKEN).json["actions"]
    }
    assert listed.keys() == ACTIONS.keys()
    assert list(listed["worker_size"]["arguments"]) == ["worker", "concurrency", "slots"]
    assert {name for name, each in listed.items() if each["confirmed"]} == {
        "run_cancel", "run_purge", "dead_purge",
    }  # fmt: skip


def test_a_run_is_paused_by_name_resumed_cancelled_and_purged(served, operator):
    runs = Runs(operator)
    said = act(served, "run_pause", run="run", reason="the endpoint is down")
    command = "hermes-queue run pause run --reason 'the endpoint is down'"
    assert said.json == {"met": 2, "done": 2, "command": command}
    info = runs.get("run")
    assert (info.state, info.reason) == ("paused", "by somebody: the endpoint is down")
    assert act(served, "run_resume", run="run").json["done"] == 2
    assert runs.get("run").state == "active"
    assert act(served, "run_purge", run="run", confirm="run").status == 409  # it has open jobs
    assert act(served, "run_cancel", run="run", confirm="run").json["done"] == 2
    assert act(served, "run_purge", run="run", confirm="run").json["done"] == 2
    assert "run" not in runs.ids()
    assert act(served, "run_pause", run="run").status == 409


@pytest.mark.parametrize("name", ["run_cancel", "run_purge", "dead_purge"])
def test_what_cannot_be_undone_wants_a_name_typed(served, operator, name):
    prepare(operator)
    before = state(operator)
    body = every_action(operator)[name]
    for confirm in ("", "ru", None):
        assert act(served, name, **{**body, "confirm": confirm}).status == 409
    assert state(operator) == before


def test_more_than_was_shown_is_not_acted_on(served, operator):
    assert act(served, "dead_requeue", met=LETTERS - 1).status == 409
    assert len(list(DeadLetters(operator).find())) == LETTERS
    assert act(served, "dead_requeue", met=LETTERS).json["done"] == LETTERS


def test_letters_of_a_filter_run_again_and_others_are_deleted(served, operator):
    said = act(served, "dead_requeue", q="cause:poison run:old")
    assert said.json == {
        "met": 2, "done": 2, "command": "hermes-queue dead requeue --run old --cause poison",
    }  # fmt: skip
    assert operator.run_status("old").queued == 2
    [left] = DeadLetters(operator).find()
    said = act(served, "dead_purge", ids=[left.id], confirm="purge")
    assert said.json["command"] == f"hermes-queue dead purge {left.id}"
    assert list(DeadLetters(operator).find()) == []
    assert act(served, "dead_purge", q="everything", confirm="purge").json["at"] == 0


def test_one_request_acts_on_so_many_letters_and_the_next_on_the_rest(
    served, operator, monkeypatch
):
    monkeypatch.setattr("hermes_plugins.view.actions.base.ONE_CALL_MAX", 2)
    assert act(served, "dead_requeue").json["done"] == 2
    assert act(served, "dead_requeue").json["done"] == 1


def test_a_request_does_not_wait_while_the_queue_is_full(served, operator, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_PRODUCER_BACKLOG_MAX", "1")
    said = act(served, "dead_requeue")
    assert (said.status, "wait for workers" in said.json["error"]) == (409, True)
    assert len(list(DeadLetters(operator).find())) == LETTERS


def test_a_queue_that_becomes_full_meanwhile_ends_a_request_and_says_what_was_done(
    served, operator, monkeypatch
):
    room = operator.backlog() + 1
    monkeypatch.setenv("HERMES_QUEUE_PRODUCER_BACKLOG_MAX", str(room))
    said = act(served, "dead_requeue")
    assert (said.status, "; done before that: 1" in said.json["error"]) == (409, True)
    assert len(list(DeadLetters(operator).find())) == LETTERS - 1


def test_a_server_that_ends_leaves_the_rest_of_an_action_undone_and_records_it(
    served, operator, caplog
):
    served.site.stopping.set()
    assert act(served, "dead_requeue").json["done"] == 1
    assert len(list(DeadLetters(operator).find())) == LETTERS - 1
    [record] = [each for each in caplog.records if vars(each).get("action") == "view_action"]
    assert vars(record)["result"] == "1 done"


def test_a_lane_is_held_and_freed(served, operator):
    said = act(served, "lane_pause", lane="train", reason="new image")
    assert (said.json["met"], said.json["done"]) == (2, 2)
    assert Breakers(operator).state("train").message == "by somebody: new image"
    assert act(served, "lane_resume", lane="train").json["done"] == 2
    assert Breakers(operator).state("train").state == "closed"
    assert act(served, "lane_resume", lane="train").status == 409
    assert act(served, "lane_pause", lane="nobody").status == 409


def test_budgets_are_set_and_removed(served, operator):
    assert act(served, "run_budget", run="run", budget_usd="20").json["done"] == 2
    assert Runs(operator).get("run").accounts["cost_usd"].limit == 20
    said = act(served, "run_budget", run="run", budget_usd="none", budget_tokens=5e9)
    assert said.json["command"] == "hermes-queue run budget run --cost none --tokens 5000000000"
    accounts = Runs(operator).get("run").accounts
    assert (accounts["cost_usd"].limit, accounts["tokens"].limit) == (None, 5e9)
    said = act(served, "run_budget", run="run", budget_slot_hours="0.5")
    assert said.json["command"] == "hermes-queue run budget run --slot-hours 0.5"
    assert Runs(operator).get("run").accounts["slot_s"].limit == 1800
    for wrong in ("", "-1", "0", "nan", "inf", "much"):
        assert act(served, "run_budget", run="run", budget_usd=wrong).status == 400
    assert act(served, "run_budget", run="run").status == 409


def test_one_trajectory_is_stopped(served, operator):
    name = make_job("run", "i0").trajectory_id
    said = act(served, "trajectory_stop", trajectory=name)
    assert said.json["command"] == f"hermes-queue run cancel --trajectory {name}"
    assert operator.client.hget(f"hq:traj:{name}", "cancel")
    assert act(served, "trajectory_stop", trajectory="run.none.0").status == 409


def test_arguments_that_no_action_takes_are_refused_and_not_repeated(served, operator):
    before = state(operator)
    secret = "sk-not-to-be-shown"
    for body in (
        {}, {"run": ""}, {"run": "a\nb"}, {"run": ["run"]}, {"run": "run", "by": secret},
        {"run": "run", "reason": "x" * 201}, {"run": "run", "reason": "a\nb"},
        {"run": "run", "dry_run": "no"}, {"run": "run", "met": True}, {"run": "run", "confirm": 1},
    ):  # fmt: skip
        said = served.post("/api/actions/run_pause", body, token=OPERATE_TOKEN)
        assert (body, said.status) == (body, 400)
        assert secret not in said.body.decode()
    for size in (0, 10_001, "many"):
        assert act(served, "worker_size", worker=WORKER, concurrency=size).status == 400
    assert act(served, "no_such_action").status == 404
    assert state(operator) == before


def test_each_action_is_a_log_record_that_says_who(served, operator, caplog):
    caplog.set_level(logging.WARNING, "hermes_plugins.view.routes.acting")
    login = served.post("/api/login", {"token": OPERATE_TOKEN, "name": "ada"})
    cookie = login.headers["set-cookie"].partition(";")[0]
    body = {"run": "run", "reason": "lunch"}
    said = served.post("/api/actions/run_pause", body, headers=[("Cookie", cookie)])
    assert said.status == 200
    assert Runs(operator).get("run").reason == "by ada: lunch"
    act(served, "run_pause", run="run", dry_run=True)
    done, refused = act(served, "lane_resume", lane="train"), "is not paused"
    assert done.status == 409
    first, second = [each for each in caplog.records if vars(each).get("action") == "view_action"]
    found = {name: vars(first)[name] for name in ("name_of_action", "by", "arguments", "result")}
    assert found == {
        "name_of_action": "run_pause", "by": "ada", "arguments": {"run": "run"}, "result": "2 done",
    }  # fmt: skip
    assert vars(first)["address"] == "127.0.0.1"
    assert refused in vars(second)["result"]


def test_what_was_done_before_an_action_failed_is_recorded_and_told(served, operator, caplog):
    caplog.set_level(logging.WARNING, "hermes_plugins.view.routes.acting")
    damaged: Any = {"cause": "poison", "run_id": "old", "trajectory_id": "old.g.0", "job": "{"}
    operator.client.xadd("hq:dead", damaged)
    said = act(served, "dead_requeue", q="run:old")
    assert (said.status, f"; done before that: {LETTERS}" in said.json["error"]) == (409, True)
    [record] = [each for each in caplog.records if vars(each).get("action") == "view_action"]
    assert f"; done before that: {LETTERS}" in vars(record)["result"]


def test_what_a_worker_objects_makes_no_line_of_the_log(served, operator, monkeypatch, caplog):
    objecting = {WORKER: {"error": "no\n[2026] run_purge: by ada: 1 done" + "y" * 5000}}
    monkeypatch.setattr(remote_control, "ask", lambda *_, **__: objecting)
    said = act(served, "worker_pause", worker=WORKER)
    assert said.status == 409
    assert len(said.json["error"]) < 1000
    [record] = [each for each in caplog.records if vars(each).get("action") == "view_action"]
    assert "\n" not in record.getMessage()


# --- running transcripts -------------------------------------------------------------------------


def asked(ledger: Ledger) -> int:
    """Commands that this Redis has run, this one aside."""
    client: Any = ledger.client
    stats = client.info("commandstats")
    return sum(each["calls"] for name, each in stats.items() if "info" not in name)


def test_under_the_user_of_the_pages_the_journal_tells_what_the_worker_may_not_be_asked(
    server, operator, viewer, guarded
):
    name = make_job("run", "i0").trajectory_id
    with serving(server, viewer, guarded.url("viewer")) as served:
        waiting = served.get(f"/api/t/{name}/live").json
        assert (waiting["state"], waiting["source"], waiting["messages"]) == ("queued", "", [])
        operator.client.hset(f"hq:traj:{name}", mapping={"state": "running", "owner": "owner"})
        said = served.get(f"/api/t/{name}/live?from=1").json
        assert (said["source"], said["worker"], said["messages"]) == ("journal", WORKER, [])
        assert "may not ask workers" in said["note"]
        before = operator.client.info("commandstats")
        assert served.get(f"/api/t/{name}/live?from=1").json == said  # the same for everybody
        assert operator.client.info("commandstats").get("cmdstat_hmget") == before.get(
            "cmdstat_hmget"
        )
        assert served.get("/api/t/run.none.0/live").status == 404
        found = [served.get(f"/api/t/{name}/live?from={n}").status for n in range(2, 9)]
        assert found[-1] == 429
        assert served.get(f"/api/t/{name}/live", "").status == 401
