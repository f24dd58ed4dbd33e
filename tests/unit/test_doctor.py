"""`hermes-queue doctor` on a healthy set-up, and on set-ups that are really broken."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from contextlib import closing

import pytest
from click.testing import CliRunner
from full_disk import on_a_full_disk
from openai_stub import openai_stub
from redis_server import RedisServer
from worker_process import wait_until

from hermes_queue.cli import cli
from hermes_queue.cli.doctor import host, redis_server
from hermes_queue.cli.doctor.host import host_findings, store_findings
from hermes_queue.ledger import Breakers, Ledger
from hermes_queue.ledger.fleet.lanes import EndedAttempts, Watched, note_lanes
from hermes_queue.settings import BreakerSettings
from workers.spool import Spool

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""


@pytest.fixture
def start(tmp_path, redis_binary, monkeypatch):
    """Start a Redis with these options and name it to doctor."""
    servers = []

    def started(*options, **more):
        server = RedisServer(redis_binary, tmp_path / "redis", options=options, **more)
        servers.append(server)
        server.start()
        monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", server.url)
        return server

    yield started
    for server in servers:
        server.close()


@pytest.fixture(autouse=True)
def own_directories(tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_PATHS_SPOOL", str(tmp_path / "spool"))
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def endpoint():
    with openai_stub() as found:
        yield found


def diagnosis(*words):
    """Exit code and findings by check."""
    result = CliRunner().invoke(cli, ["doctor", "--json", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return result.exit_code, {each["check"]: each for each in found}


def expect(check, level, text, *words):
    """That doctor says `text` at `check`, and what to do; errors make its exit code 1."""
    code, found = diagnosis(*words)
    finding = found[check]
    assert finding["level"] == level, finding
    assert text in finding["message"] + finding["remedy"], finding
    assert code == int(any(each["level"] == "error" for each in found.values()))
    if level == "error":
        assert code == 1
    return finding


def test_a_healthy_set_up_has_no_error_and_only_the_warning_that_no_worker_is_alive(
    start, endpoint
):
    start("--maxmemory", "100mb")
    _, url = endpoint
    code, found = diagnosis("--base-url", url, "--token-ids")
    assert code == 0
    poor = {check for check, each in found.items() if each["level"] != "ok"}
    of_this_machine = {"sandbox.local", "disk.cache", "disk.spool", "disk.shared", "redis.version"}
    of_this_machine.add("leftovers.sandboxes")  # of workers that were killed here
    assert poor <= {"deployment.workers", *of_this_machine}, found
    assert found["sandbox.local"]["level"] != "error"
    assert {"redis.persistence", "redis.clock", "model.tools", "model.token_ids"} <= set(found)


def test_the_report_for_people_has_a_line_per_finding_and_one_for_what_to_do(start):
    start("--appendonly", "no")
    output = CliRunner().invoke(cli, ["doctor"]).output
    assert "warning redis.persistence: the append-only file is off" in output
    assert "        -> start it with --appendonly yes" in output


# --- what slots share with the worker -------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://127.0.0.1:6379/0", "can change scores"),
        ("redis://localhost", "can change scores"),
        ("redis://worker:secret@127.0.0.1:6379/0", "neighbours and metadata"),
        ("unix:///run/redis.sock", "neighbours and metadata"),
    ],
)
def test_agents_with_the_hosts_network_beside_an_open_redis_are_warned_of(url, text, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", url)
    monkeypatch.setenv("HERMES_QUEUE_LOCAL_NETWORK", "true")
    [finding] = [each for each in host_findings() if each.check == "sandbox.network"]
    assert finding.level == "warning"
    assert text in finding.message


def test_too_few_open_files_for_the_concurrency_are_warned_of(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    monkeypatch.setenv("HERMES_QUEUE_WORKER_CONCURRENCY", "80")
    assert host.descriptor_finding().level == "ok"
    monkeypatch.setenv("HERMES_QUEUE_WORKER_CONCURRENCY", "81")
    finding = host.descriptor_finding()
    assert finding.level == "warning"
    assert "lower HERMES_QUEUE_WORKER_CONCURRENCY to 80" in finding.remedy


def test_a_little_room_that_slots_share_with_redis_and_the_spool_is_warned_of(
    start, tmp_path, monkeypatch
):
    start()
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path / "cache"))
    with closing(Ledger.connect()) as ledger:
        assert [each.level for each in host.shared_disk_findings(ledger)] == ["ok"]
        monkeypatch.setattr(host, "SHARED_LOW_BYTES", 1 << 62)
        [finding] = host.shared_disk_findings(ledger)
    assert finding.level == "warning"
    assert "the spool and Redis" in finding.message


# --- the object store -----------------------------------------------------------------------


def test_without_an_object_store_nothing_is_said_of_one(monkeypatch):
    monkeypatch.delenv("HERMES_QUEUE_STORE_URL", raising=False)
    assert list(store_findings()) == []


def test_an_object_store_that_works(tmp_path, monkeypatch):
    monkeypatch.delenv("HERMES_QUEUE_REDIS_URL", raising=False)
    monkeypatch.setenv("HERMES_QUEUE_STORE_URL", (tmp_path / "store").as_uri())
    expect("store", "ok", "written, read and deleted")
    assert not [path for path in (tmp_path / "store").glob("*/*") if path.is_file()]


def test_an_object_store_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.delenv("HERMES_QUEUE_REDIS_URL", raising=False)
    (tmp_path / "store").write_text("no directory")
    monkeypatch.setenv("HERMES_QUEUE_STORE_URL", (tmp_path / "store").as_uri())
    expect("store", "error", "does not answer")


def test_a_directory_as_object_store_that_other_hosts_may_not_see(tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("HERMES_QUEUE_STORE_URL", (tmp_path / "store").as_uri())
    [finding] = store_findings()
    assert finding.level == "error"
    assert "HERMES_QUEUE_STORE_SHARED" in finding.message


# --- Redis ---------------------------------------------------------------------------------


def test_a_redis_that_is_not_there(monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", "redis://127.0.0.1:1/0")
    expect("redis.reachable", "error", "cannot be reached")


def test_a_wrong_password(start, monkeypatch):
    server = start(tcp=True)
    with server.client() as client:
        client.config_set("requirepass", "secret")
        url = f"redis://:wrong@127.0.0.1:{server.port}/0"
        monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", url)
        finding = expect("redis.reachable", "error", "check user and password")
        assert "wrong@" not in json.dumps(finding)
        client.config_set("requirepass", "")


def test_a_redis_that_evicts(start):
    start("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    expect("redis.eviction", "error", "Redis deletes jobs")


@pytest.mark.parametrize("version", ["6.2.14", "7.0.15", "7.2.0", "8.2.1"])
def test_a_redis_with_known_holes_in_lua(version):
    [finding] = redis_server._age(version)
    assert (finding.check, finding.level) == ("redis.version", "warning")


@pytest.mark.parametrize("version", ["6.2.20", "7.4.6", "8.0.4", "8.4.0", "9.0.0", "?"])
def test_a_redis_without_known_holes(version):
    assert list(redis_server._age(version)) == []


def test_a_redis_that_forgets(start):
    start("--appendonly", "no")
    expect("redis.persistence", "warning", "append-only file is off")


def test_a_redis_without_a_limit(start):
    start()
    expect("redis.memory", "warning", "set maxmemory")


def test_a_full_redis(start):
    server = start("--maxmemory", "100mb")
    with server.client() as client:
        client.set("ballast", "x" * 4_000_000)
        client.config_set("maxmemory", "3mb")
    _, found = diagnosis()
    assert found["redis.memory"]["level"] == "error"
    assert "is full" in expect("redis.writes", "error", "raise maxmemory")["message"]


def test_a_replica(start):
    server = start()
    with server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
    expect("redis.role", "error", "put the master into the URL")
    expect("redis.writes", "error", "refuses writes")


def test_a_redis_that_cannot_save(start):
    server = start()
    with server.client() as client:
        shutil.rmtree(server.directory)
        client.bgsave()
        wait_until(
            "the save has failed",
            lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err",
        )
    expect("redis.persistence", "error", "rdb_last_bgsave_status")


def test_a_host_whose_clock_is_wrong(start, monkeypatch):
    start()
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 30)
    expect("redis.clock", "warning", "30.0 s ahead")
    monkeypatch.setattr(time, "time", lambda: clock() - 3600)
    expect("redis.clock", "error", "3600.0 s behind")


@pytest.mark.parametrize(
    ("prefix", "level"), [("hq:", "error"), ("", "warning"), ("shop:", "warning")]
)
def test_another_celery_app_in_the_same_database(start, prefix, level):
    server = start()
    code = (
        "import sys; from celery import Celery\n"
        "app = Celery(broker=sys.argv[1])\n"
        "app.conf.broker_transport_options = {'global_keyprefix': sys.argv[2]}\n"
        "app.send_task('mail', queue='mails')\n"
    )
    command = [sys.executable, "-c", code, server.broker_url, prefix]
    subprocess.run(command, check=True, timeout=60)
    expected = "visibility_timeout" if level == "error" else repr(prefix)
    expect("redis.neighbours", level, expected)


# --- the deployment ------------------------------------------------------------------------


def test_jobs_that_wait_in_a_lane_nobody_serves(start):
    start()
    ledger = Ledger.connect()
    note_lanes(ledger, ["night"])
    ledger.client.lpush("hq:v1.night", b"{}")
    ledger.close()
    expect("deployment.lane.night", "error", "HERMES_QUEUE_WORKER_LANES=night")
    expect("deployment.workers", "warning", "no worker is alive")


def test_a_database_that_redis_does_not_have(start, monkeypatch):
    server = start()
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", f"{server.url.partition('?')[0]}?db=99")
    expect("redis.reachable", "error", "has no such database")


def test_a_lane_that_has_paused_itself(start):
    start()
    ledger = Ledger.connect()
    note_lanes(ledger, ["train"])
    breakers = Breakers(ledger, BreakerSettings(min_failures=1))
    breakers.record(Watched("train"), {"sandbox": EndedAttempts(1, "no room")})
    ledger.close()
    expect("deployment.lane.train", "warning", "hermes-queue lanes resume train")


def test_results_that_nobody_reads(start, monkeypatch):
    server = start()
    monkeypatch.setenv("HERMES_QUEUE_RESULTS_SOFT_MAX_GROUPS", "1")
    with server.client() as client:
        client.xadd("hq:results", {"group_id": "g"})
    expect("deployment.results", "error", "no new group begins")


def test_a_table_of_prices_that_cannot_be_read(start, tmp_path, monkeypatch):
    prices = tmp_path / "prices.toml"
    monkeypatch.setenv("HERMES_QUEUE_MODEL_PRICES", str(prices))
    expect("model.prices", "error", "prices.toml: No such file or directory")
    prices.write_text("[m]\nprompt = 1\ncompletion = 2\n")
    expect("model.prices", "ok", "has the prices of 1 models")


# --- this host -----------------------------------------------------------------------------


def test_a_misspelt_setting(monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_WORKER_CONCURENCY", "4")
    expect("settings", "error", "did you mean HERMES_QUEUE_WORKER_CONCURRENCY")


def test_a_foreign_distribution_that_owns_our_package(start, tmp_path, monkeypatch):
    metadata = tmp_path / "site" / "workers-0.1.dist-info"
    metadata.mkdir(parents=True)
    (metadata.parent / "workers").mkdir()
    (metadata / "METADATA").write_text("Name: workers\nVersion: 0.1\n")
    (metadata / "top_level.txt").write_text("workers\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    start()
    expect("installation", "error", "pip uninstall -y workers")


def test_missing_programs_of_the_fence(start, tmp_path, monkeypatch):
    start()
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    expect("sandbox.local", "error", "apt install util-linux")


def test_no_isolation_by_choice(start, monkeypatch):
    start()
    monkeypatch.setenv("HERMES_QUEUE_LOCAL_ISOLATION", "none")
    expect("sandbox.local", "warning", "isolation is off")


def test_a_modal_backend_without_a_token(start, tmp_path, monkeypatch):
    start()
    for name in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "MODAL_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    environment = {**os.environ, "MODAL_CONFIG_PATH": str(tmp_path / "none.toml")}
    environment["HERMES_QUEUE_SANDBOX_BACKEND"] = "modal"
    command = [sys.executable, "-m", "hermes_queue.cli", "doctor", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90)
    found = {each["check"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert (done.returncode, found["sandbox.modal"]["level"]) == (1, "error")
    assert "modal token new" in found["sandbox.modal"]["message"]


def test_a_full_disk_under_the_spool(start, tmp_path):
    start()
    spool = tmp_path / "spool"
    spool.mkdir()
    doctor = [sys.executable, "-m", "hermes_queue.cli", "doctor", "--json"]
    command = [*on_a_full_disk(spool), *doctor]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    found = {each["check"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert (done.returncode, found["disk.spool"]["level"]) == (1, "error"), done
    assert "No space left on device" in found["disk.spool"]["message"]


def test_records_of_a_dead_worker(start, tmp_path):
    start()
    code = (
        "import os, sys; from pathlib import Path; from workers.spool import Spool\n"
        "Spool(Path(sys.argv[1]), 'd', 'owner').put('t', b'x'); os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "spool")], timeout=60, check=False)
    expect("leftovers.spool", "warning", "start a worker on this host")


def test_records_of_a_living_worker_are_no_leftovers(start, tmp_path):
    start()
    spool = Spool(tmp_path / "spool", "d", "owner")
    record = spool.put("t", b"x")
    assert "leftovers.spool" not in diagnosis()[1]
    record.drop()
    spool.close()


# --- the model endpoint --------------------------------------------------------------------


@pytest.fixture
def no_redis(monkeypatch):
    monkeypatch.delenv("HERMES_QUEUE_REDIS_URL", raising=False)


@pytest.mark.usefixtures("no_redis")
class TestEndpoint:
    def test_nobody_listens(self):
        expect(
            "model.endpoint", "error", "cannot be reached", "--base-url", "http://127.0.0.1:1/v1"
        )

    def test_the_key_is_refused(self, endpoint):
        stub, url = endpoint
        stub.key = "right"
        expect("model.endpoint", "error", "HERMES_QUEUE_MODEL_API_KEY", "--base-url", url)

    def test_the_key_of_the_settings_is_used(self, endpoint, monkeypatch):
        stub, url = endpoint
        stub.key = "right"
        monkeypatch.setenv("HERMES_QUEUE_MODEL_API_KEY", "right")
        expect("model.endpoint", "ok", "answers", "--base-url", url)

    def test_the_model_is_not_there(self, endpoint):
        words = ("--base-url", endpoint[1], "--model", "large")
        expect("model.name", "error", "served there: small", *words)

    def test_the_template_drops_tools(self, endpoint):
        stub, url = endpoint
        stub.shows_tools = False
        expect("model.tools", "error", "tools=prompted", "--base-url", url)

    def test_token_ids_are_missing(self, endpoint):
        stub, url = endpoint
        stub.token_ids = False
        expect("model.token_ids", "warning", "RL needs them", "--base-url", url)
        expect("model.token_ids", "error", "RL needs them", "--base-url", url, "--token-ids")

    def test_the_usage_is_missing(self, endpoint):
        stub, url = endpoint
        stub.reply = {"choices": [{"message": {"role": "assistant", "content": "yes"}}]}
        expect("model.usage", "warning", "does not report the tokens", "--base-url", url)

    def test_the_reply_is_no_completion(self, endpoint):
        stub, url = endpoint
        stub.reply = {"text": "yes"}
        expect("model.reply", "error", "does not answer like OpenAI", "--base-url", url)

    def test_token_ids_are_wanted_of_no_endpoint(self):
        expect("model.endpoint", "error", "no endpoint is given", "--token-ids")
