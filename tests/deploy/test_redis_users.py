"""Each of the users that we ship does its whole job, and nothing of the others'."""

from __future__ import annotations

import json
from contextlib import closing, nullcontext

import pytest
import redis
from guarded_redis import ROOT
from ledger_keys import is_listed
from stream_groups import publish

import hermes_queue
from hermes_queue import AgentSpec
from hermes_queue.cli.exporter import Exporter
from hermes_queue.errors import RedisUnavailable
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.pacing import pace_of, set_pace
from hermes_queue.ledger.policy import set_version
from hermes_queue.ledger.runs import Runs
from hermes_queue.results.consume import remove_consumer_group
from hermes_queue.telemetry import metrics
from hermes_queue.trainers.feed import Feed

HQ = "hermes-queue"
ADMINISTRATION = (
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("SHUTDOWN", "NOSAVE"),
    ("ACL", "LIST"),
    ("KEYS", "*"),
    ("MONITOR",),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("EVAL", "return 1", "0"),
    ("SCRIPT", "FLUSH"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("MODULE", "LIST"),
)
ROLES = ("producer", "worker", "consumer", "monitor", "viewer", "flower", "operator")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("command", ADMINISTRATION, ids=" ".join)
def test_nobody_administers_the_server(guarded, role, command):
    with guarded.client(role) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command)


@pytest.mark.parametrize("role", ROLES)
def test_keys_of_others_are_out_of_reach(guarded, role):
    with guarded.client(role) as client:
        for command in (("GET", "other:secret"), ("SET", "other:secret", "1"), ("DEL", "other:x")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)


def test_without_a_user_there_is_no_way_in(guarded):
    with redis.Redis(port=guarded.port) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def test_the_passwords_lie_nowhere_on_disk(guarded):
    files = [path for path in guarded.directory.rglob("*") if path.is_file()]
    assert any(b"user producer" in path.read_bytes() for path in files)
    assert [path for path in files if b"0123456789abcdef" in path.read_bytes()] == []


def denied(guarded, role, *command):
    with guarded.client(role) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command)


@pytest.mark.parametrize(
    "command",
    [
        ("GET", "hq:body:r1.i.0"),
        ("MGET", "hq:body:r1.i.0", "hq:body:r1.i.1"),
        ("XRANGE", "hq:results", "-", "+"),
        ("XREAD", "STREAMS", "hq:results", "0"),
        ("XADD", "hq:results", "*", "a", "b"),
        ("XGROUP", "CREATE", "hq:results", "mine", "0"),
        ("XRANGE", "hq:dead", "-", "+"),
        ("PUBLISH", "hq:/0.celery.pidbox", "{}"),
        ("PUBLISH", "hq:/0.celeryev/task.sent", "{}"),
        ("SUBSCRIBE", "hq:/0.celeryev/task.#"),
        ("DEL", "hq:run:r1"),
    ],
    ids=" ".join,
)
def test_a_producer_reads_no_result_and_tells_no_worker(guarded, command):
    denied(guarded, "producer", *command)


@pytest.mark.parametrize(
    "command",
    [
        ("LPUSH", "hq:v1.train", "{}"),
        ("SADD", "hq:_kombu.binding.v1.train", "x"),
        ("HSET", "hq:traj:r1.i.0", "state", "queued"),
        ("ZADD", "hq:delayed", "1", "r1.i.0"),
        ("XADD", "hq:results", "*", "a", "b"),
        ("XTRIM", "hq:results", "MAXLEN", "0"),
        ("XDEL", "hq:results", "1-1"),
        ("DEL", "hq:results"),
        ("SET", "hq:body:r1.i.0", "forged"),
        ("DEL", "hq:body:r1.i.0"),
        ("PUBLISH", "hq:/0.celery.pidbox", "{}"),
        ("HGET", "hq:traj:r1.i.0", "job"),
        ("HGETALL", "hq:failed:r1"),
        ("XRANGE", "hq:dead", "-", "+"),
    ],
    ids=" ".join,
)
def test_a_consumer_enqueues_forges_and_deletes_nothing_and_reads_no_job(guarded, command):
    denied(guarded, "consumer", *command)


@pytest.mark.parametrize(
    "command",
    [
        ("SET", "hq:x", "1"),
        ("HSET", "hq:run:r1", "state", "paused"),
        ("DEL", "hq:run:r1"),
        ("XADD", "hq:results", "*", "a", "b"),
        ("LPUSH", "hq:v1.train", "{}"),
        ("EVALSHA", "0" * 40, "0"),
        ("PUBLISH", "hq:/0.celery.pidbox", "{}"),
        ("GET", "hq:body:r1.i.0"),
        ("GET", "hq:item:abc"),
        ("HGET", "hq:traj:r1.i.0", "job"),
        ("HGETALL", "hq:failed:r1"),
        ("XRANGE", "hq:dead", "-", "+"),
        ("GET", "hq:log:w"),
    ],
    ids=" ".join,
)
def test_a_monitor_changes_nothing_and_reads_no_transcript_job_or_log(guarded, command):
    denied(guarded, "monitor", *command)


@pytest.mark.parametrize(
    "command",
    [
        ("SET", "hq:x", "1"),
        ("DEL", "hq:run:r1"),
        ("HSET", "hq:run:r1", "state", "paused"),
        ("EXPIRE", "hq:run:r1", "1"),
        ("COPY", "hq:run:r1", "hq:run:r2"),
        ("GETDEL", "hq:body:r1.i.0"),
        ("GETEX", "hq:body:r1.i.0", "EX", "1"),
        ("SORT", "hq:runs", "STORE", "hq:x"),
        ("XADD", "hq:results", "*", "a", "b"),
        ("XADD", "hq:dead", "*", "a", "b"),
        ("XDEL", "hq:dead", "1-1"),
        ("XTRIM", "hq:results", "MAXLEN", "0"),
        ("XGROUP", "CREATE", "hq:results", "mine", "0"),
        ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "hq:results", ">"),
        ("LPUSH", "hq:v1.train", "{}"),
        ("EVALSHA", "0" * 40, "0"),
        ("FCALL", "f", "0"),
        ("PUBLISH", "hq:/0.celery.pidbox", "{}"),
        ("SUBSCRIBE", "hq:/0.celeryev/task.#"),
    ],
    ids=" ".join,
)
def test_a_viewer_changes_nothing_and_tells_no_worker(guarded, command):
    denied(guarded, "viewer", *command)


def test_of_all_commands_that_this_redis_has_a_viewer_may_only_run_those_that_look(guarded):
    acts = {"@write", "@scripting", "@pubsub", "@admin", "@dangerous"}
    with guarded.client("viewer") as client:
        client.set_response_callback("COMMAND", lambda answer, **_: answer)
        known = client.execute_command("COMMAND")
        known = [each for command in known for each in (command[9] or [command])]
        acting = [(each[0].split("|"), abs(each[1])) for each in known if acts & set(each[6])]
        taken = {" ".join(name) for name, words in acting if runs(client, name, words)}
    assert len(acting) > 150
    assert taken == {"info"}


def runs(client: redis.Redis, name: list[str], words: int) -> bool:
    """Whether Redis lets this user run a command of so many words."""
    try:
        client.execute_command(*name, *["hq:x"] * (words - len(name)))
    except redis.exceptions.ResponseError as error:
        refused = isinstance(error, redis.exceptions.NoPermissionError)
        return not refused and "not allowed" not in str(error)  # as it says of DEBUG to everybody
    return True


def test_a_viewer_sees_all_that_a_monitor_sees_and_what_it_does_not(worker, guarded, as_role):
    sent = as_role("producer", "producers.gsm8k", "--items", "1", "--run-id", "viewed")
    assert sent.returncode == 0, sent.stderr
    shown = as_role("viewer", "show_everything", "viewed")
    assert shown.returncode == 0, shown.stderr
    with guarded.client("viewer") as client:
        assert client.xrange("hq:dead") == []
        assert client.get("hq:body:nothing") is None


@pytest.mark.parametrize(
    "command",
    [
        ("LPUSH", "hq:v1.train", "{}"),
        ("XRANGE", "hq:results", "-", "+"),
        ("GET", "hq:body:r1.i.0"),
        ("HGETALL", "hq:traj:r1.i.0"),
        ("HSET", "hq:run:r1", "state", "paused"),
    ],
    ids=" ".join,
)
def test_flower_neither_enqueues_nor_reads_results(guarded, command):
    denied(guarded, "flower", *command)


def test_each_role_does_its_whole_job(worker, guarded, as_role, tmp_path):
    out = tmp_path / "out.jsonl"
    flags = ("--items", "3", "--group-size", "2", "--run-id", "whole", "--budget-tokens", "1000000")
    sent = as_role("producer", "producers.gsm8k", *flags)
    assert sent.returncode == 0, sent.stderr
    sink = ("sink", "jsonl", "--out", str(out), "--run", "whole", "--until-done", "--quiet")
    consumed = as_role("consumer", HQ, *sink)
    assert consumed.returncode == 0, consumed.stderr
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["score"] for record in records] == [1.0] * 6

    shown = as_role("monitor", "show_everything", "whole")
    assert shown.returncode == 0, shown.stderr
    assert "whole" in shown.stdout
    assert worker.alive
    assert "NoPermission" not in worker.log()
    with guarded.client("worker") as client:
        keys = [key.removeprefix("hq:") for key in client.scan_iter("hq:*")]
    assert len(keys) > 20
    assert [key for key in keys if not is_listed(key) and not of_celery(key)] == []


def test_a_letter_that_a_consumer_has_forged_hides_no_other(guarded, as_role):
    with guarded.client("consumer") as consumer:
        forged = consumer.xadd("hq:dead", {"job": "no job"})
    with guarded.client("operator") as operator:
        other = operator.xadd("hq:dead", {"cause": "env_bug", "reason": "it raised", "env": "e"})
    listed = as_role("operator", HQ, "dead", "list")
    assert (listed.returncode, "it raised" in listed.stdout) == (0, True), listed.stderr
    again = as_role("operator", HQ, "dead", "requeue", forged)
    assert (again.returncode, "is no job that can run again" in again.stderr) == (2, True)
    assert as_role("operator", HQ, "dead", "purge", forged, other, "--yes").returncode == 0


def of_celery(key: str) -> bool:
    return "pidbox" in key or key.startswith(("_kombu.", "celeryev", "unacked"))


def test_a_monitor_serves_every_metric_of_the_exporter(worker, guarded, as_role):
    sent = as_role("producer", "producers.gsm8k", "--items", "1", "--run-id", "metered")
    assert sent.returncode == 0, sent.stderr
    ledger = Ledger.connect(url=guarded.url("monitor"))
    exporter = Exporter(ledger, lanes=["train"], scan_s=0.0)
    values = dict(exporter.values())
    assert values[metrics.UP] == {(): 1.0}
    assert values[metrics.WORKERS] == {(): 1}
    assert json.loads(exporter.targets()[0]) == []  # this worker serves none
    ledger.close()


@pytest.mark.parametrize("role", ["worker", "operator"])
def test_doctor_is_content_with_the_server_as_we_start_it(worker, guarded, as_role, role):
    done = as_role(role, HQ, "doctor", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    of_redis = {
        line["check"]: line["level"] for line in lines if line["check"].startswith("redis.")
    }
    of_redis.pop("redis.version", None)  # that of the server at hand
    assert set(of_redis.values()) <= {"ok"}, done.stdout


def test_an_operator_controls_runs_and_workers(worker, guarded, as_role):
    assert as_role("operator", "producers.gsm8k", "--items", "1", "--run-id", "op").returncode == 0
    for command in ("run pause op", "run resume op", "run cancel op --yes"):
        done = as_role("operator", HQ, *command.split())
        assert done.returncode == 0, done.stderr
    ledger = Ledger.connect(url=guarded.url("monitor"))
    [found] = ledger.workers()
    ledger.close()
    only = ("-d", found["name"], "-t", "60")  # ends with the answer, not after a second
    pong = as_role("operator", "celery", "-A", "hermes_queue", "inspect", "ping", *only)
    assert "pong" in pong.stdout, pong.stderr


def test_a_monitor_that_tells_a_worker_something_is_told_which_user_may(worker, guarded, as_role):
    with closing(Ledger.connect(url=guarded.url("monitor"))) as ledger:
        [found] = ledger.workers()
    done = as_role("monitor", HQ, "workers", "pause", found["name"])
    assert done.returncode == 4
    assert "cannot be sent to the workers" in done.stderr
    assert "`operator` may do what commands do" in done.stderr


def test_an_operator_follows_its_own_run(worker, as_role, tmp_path):
    out = tmp_path / "out.jsonl"
    done = as_role("operator", "producers.gsm8k", "--items", "1", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert len(out.read_text().splitlines()) == 1


@pytest.mark.parametrize("flag", ["--follow", "--out"])
def test_a_producer_without_rights_to_results_names_the_missing_rights(
    guarded, as_role, tmp_path, flag
):
    value = (str(tmp_path / "out.jsonl"),) if flag == "--out" else ()
    done = as_role("producer", "producers.gsm8k", "--items", "1", "--run-id", "f", flag, *value)
    assert done.returncode == 2
    assert "lacks the consumer's rights" in done.stderr
    ledger = Ledger.connect(url=guarded.url("monitor"))
    assert ledger.run_status("f").total == 0
    ledger.close()


def test_a_trainer_sends_jobs_as_a_producer_and_reads_them_as_a_consumer(guarded, worker):
    rows = [{"question": "1 + 1?", "answer": "#### 2"}]
    sent = hermes_queue.enqueue(
        env="gsm8k",
        items=rows,
        run_id="sent",
        agent=AgentSpec(kind="oracle"),
        priority=0,
        url=guarded.url("producer"),
    )
    with hermes_queue.consume_sync("sent", run="sent", url=guarded.url("consumer")) as groups:
        group = next(groups)
        group.ack()
    assert [(m.trajectory_id, m.score) for m in group.members] == [(sent.trajectory_ids[0], 1.0)]
    with guarded.client("consumer") as client:
        remove_consumer_group(client, "hq:", "sent")


def test_a_trainer_paces_its_run_as_a_consumer(guarded, tmp_path):
    with closing(Ledger.connect(url=guarded.url("producer"))) as producer:
        set_pace(producer, "run", 3)
    with closing(Ledger.connect(url=guarded.url("worker"))) as worker:
        publish(worker, *"abc", lane="unserved")  # no worker takes one of them first
        options = {"run": "run", "directory": tmp_path, "group_size": 2, "max_lag": 0}
        for ahead in (3, 2):
            with Feed("paced", url=guarded.url("consumer"), **options, pace=3) as feed:
                feed.resume(None if ahead == 3 else 1)
                groups = feed.take(ahead)
                assert pace_of(worker, "run").ahead == ahead
                feed.trained(4 - ahead, groups[:1])
                feed.saved(4 - ahead)
                assert pace_of(worker, "run").ahead == ahead - 1
        set_pace(worker, "run", None)
    with guarded.client("consumer") as client:
        remove_consumer_group(client, "hq:", "paced")


def test_a_consumer_that_enqueues_is_refused_in_one_line(guarded, as_role):
    done = as_role("consumer", "producers.gsm8k", "--items", "1")
    assert done.returncode == 4
    assert "refuses us" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_monitor_that_pauses_a_run_is_refused_in_one_line(guarded, as_role):
    done = as_role("monitor", HQ, "run", "pause", "op")
    assert done.returncode == 4
    assert "no permissions to run the 'evalsha' command" in done.stderr
    assert "`operator` may do what commands do" in done.stderr
    assert "password" not in done.stderr


@pytest.mark.parametrize("role", ["producer", "consumer"])
@pytest.mark.parametrize(("command", "state"), [("cancel", "active"), ("resume", "paused")])
def test_who_may_not_finish_a_change_of_a_run_does_not_begin_it(guarded, role, command, state):
    name = f"{role}-{command}"
    with closing(Ledger.connect(url=guarded.url("operator"))) as operator:
        operator.client.hset(operator.key(f"run:{name}"), "state", state)
    allowed = role == "producer" and command == "resume"  # a run that it enqueues again
    refused = pytest.raises(RedisUnavailable, match=r"(?i)no permissions")
    with closing(Ledger.connect(url=guarded.url(role))) as ledger:
        with nullcontext() if allowed else refused:
            getattr(Runs(ledger), command)(name)
    with guarded.client("monitor") as monitor:
        assert monitor.hget(f"hq:run:{name}", "state") == ("active" if allowed else state)


def test_a_trainer_says_which_policy_it_has_come_to(guarded):
    ledger = Ledger.connect(url=guarded.url("consumer"))
    set_version(ledger, "trained", 7)
    ledger.close()
    with guarded.client("monitor") as client:
        assert client.hget("hq:run:trained", "policy_version") == "7"


def test_a_script_that_asks_for_more_than_the_user_may_is_explained(guarded):
    ledger = Ledger.connect(url=guarded.url("producer"))
    with pytest.raises(RedisUnavailable, match="refuses us"):
        ledger.call("reap_turn", backend="local", interval_s=1)
    ledger.close()


def test_what_the_page_says_of_consumers_among_each_other_is_so(guarded):
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    assert "consumer groups of *other* consumers" in page
    with guarded.client("consumer") as one, guarded.client("consumer") as other:
        one.xgroup_create("hq:results", "ones", mkstream=True, id="0")
        assert other.xgroup_setid("hq:results", "ones", "$")
        assert other.xgroup_destroy("hq:results", "ones")


def test_a_monitor_counts_dead_letters(guarded):
    with guarded.client("operator") as operator, guarded.client("monitor") as monitor:
        id = operator.xadd("hq:dead", {"trajectory_id": "r.x.0"})
        assert monitor.xlen("hq:dead") == operator.xlen("hq:dead") > 0
        operator.xdel("hq:dead", id)


def test_a_consumer_takes_its_group_away_again(guarded):
    with guarded.client("consumer") as client:
        client.xgroup_create("hq:results", "mine", mkstream=True)
        client.hset("hq:consumer-group:mine", "filter", "{}")
        remove_consumer_group(client, "hq:", "mine")
        assert not client.exists("hq:consumer-group:mine")
