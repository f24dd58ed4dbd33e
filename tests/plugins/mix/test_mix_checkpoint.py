"""One producer per mix, and what it leaves behind when it dies."""

from __future__ import annotations

import json
import os
import signal
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import dying_mix
import pytest
from click.testing import CliRunner
from mixes import NothingKnown, jobs_in, rows_in, state_in, waiting_in, write_mix, write_rows
from zygote import run_forked

from hermes_plugins.mix import checkpoint
from hermes_plugins.mix.checkpoint import Checkpoint, MixBatch, MixHeld, MixLost, forget
from hermes_plugins.mix.document import read_mix
from hermes_plugins.mix.known import FromMemory
from hermes_plugins.mix.server import MixServer
from hermes_plugins.mix.sources import open_sources
from hermes_plugins.mix.tuning import tune
from hermes_queue.cli import cli
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Ledger, Runs
from hermes_queue.ledger.accounts.drift import drift_of
from hermes_queue.ledger.budgets import accounts
from hermes_queue.ledger.tasks import Observation, Solver, TaskMemory
from hermes_queue.settings import ProducerSettings

IMPORTED = ("hermes_plugins.mix.server", "producers.gsm8k", "envs.gsm8k", "producers.run.plan")
ENDING = {"a": "epochs = 3\nweight = 2", "b": "epochs = 1\nsampler = 'in_order'", "c": "epochs = 1"}


@contextmanager
def serving(ledger, file, *, batch=8, stop=None):
    """A server and what it says."""
    said: list[str] = []
    server = MixServer(
        ledger,
        read_mix(file),
        rates=NothingKnown(),
        say=said.append,
        stop=stop or threading.Event(),
        settings=ProducerSettings(batch=batch),
    )
    sources = {source.name: source for source in open_sources(read_mix(file))}
    yield server, sources, said
    server.checkpoint.end("the test goes on")
    for source in sources.values():
        source.close()


def serve(ledger, file, **more):
    """Serve a mix to its end; what it said."""
    with serving(ledger, file, **more) as (server, sources, said):
        assert server.serve(sources)
    return said


@pytest.fixture
def other(ledger: Ledger):
    """Another deployment in the same Redis."""
    with closing(Ledger(ledger.client, prefix="other:", url=ledger.url)) as found:
        yield found


def rows_without_prefix(ledger):
    return [row.removeprefix(ledger.prefix) for row in rows_in(ledger)]


@pytest.mark.fleet
def test_a_mix_that_is_killed_eighty_times_enqueues_the_same_as_one_that_is_not(
    ledger, other, redis_server, tmp_path
):
    file = write_mix(tmp_path, ENDING, rows=80, head="backlog.high = 1000")
    serve(other, file)
    environment = {
        **os.environ,
        "HERMES_QUEUE_REDIS_URL": redis_server.url,
        "PYTHONPATH": str(Path(dying_mix.__file__).parent),
    }

    def run(event: int) -> int:
        words = ("dying_mix", file, event, 2)
        done = run_forked(*words, environment=environment, imported=IMPORTED)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode

    assert [run(event) for event in range(1, 81)] == [-signal.SIGKILL] * 80
    assert run(0) == 0
    assert rows_without_prefix(ledger) == rows_without_prefix(other)
    assert jobs_in(ledger) == jobs_in(other)
    assert state_in(ledger) == state_in(other)
    assert waiting_in(ledger) == waiting_in(other) == [f"m.{job}" for job in jobs_in(ledger)]


def test_batches_of_any_size_give_the_same_jobs(ledger, other, tmp_path):
    file = write_mix(tmp_path, ENDING, rows=5, head="backlog.high = 1000")
    serve(ledger, file, batch=1)
    serve(other, file, batch=500)
    assert rows_without_prefix(ledger) == rows_without_prefix(other)


def test_a_mix_that_is_over_enqueues_nothing_more(ledger, tmp_path):
    file = write_mix(tmp_path, ENDING)
    serve(ledger, file)
    before = jobs_in(ledger)
    serve(ledger, file)
    assert jobs_in(ledger) == before


def test_the_backlog_stays_between_its_marks(ledger, tmp_path):
    file = write_mix(tmp_path, {"a": ""}, head="backlog = { low = 10, high = 30 }")
    stop, waiting = threading.Event(), []

    def look(ledger=ledger):
        """Jobs as they are when the server has enqueued a batch."""
        waiting.append(ledger.run_status("m").queued)
        if waiting[-1] >= 30:
            stop.set()

    with serving(ledger, file, batch=4, stop=stop) as (server, sources, _):
        enqueue = server._send
        server._send = lambda groups: (enqueue(groups), look())
        assert not server.serve(sources)
    assert waiting == [*range(4, 30, 4), 30]


def test_a_second_producer_is_told_who_serves_the_mix(ledger, monkeypatch):
    monkeypatch.setattr(checkpoint, "POLL_S", 0.01)
    first, second = Checkpoint(ledger, "m"), Checkpoint(ledger, "m")
    first.take()
    beating = threading.Event()

    def beat():
        while not beating.wait(0.005):
            first.beat()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(MixHeld, match=f"process {os.getpid()} on "):
            second.take()
    finally:
        beating.set()
        thread.join()


def test_a_mix_whose_producer_died_is_free_when_its_lease_is_over(ledger, monkeypatch):
    monkeypatch.setattr(checkpoint, "LEASE_S", 0.15)
    monkeypatch.setattr(checkpoint, "POLL_S", 0.01)
    Checkpoint(ledger, "m").take()
    assert Checkpoint(ledger, "m").take() == MixBatch(0, "", "")


def test_a_lease_from_before_the_clock_was_set_back_holds_nobody_up(ledger):
    Checkpoint(ledger, "m").take()
    ledger.client.hset("hq:mix:m", "until", "99999999999.0")
    Checkpoint(ledger, "m").take()


def test_a_producer_that_was_overtaken_writes_nothing_down(ledger):
    first, second = Checkpoint(ledger, "m"), Checkpoint(ledger, "m")
    first.take()
    ledger.client.hset("hq:mix:m", "until", "0")
    second.take()
    second.commit(MixBatch(1, "{}", "[]"))
    with pytest.raises(MixLost):
        first.beat()
    with pytest.raises(MixLost):
        first.commit(MixBatch(2, "{}", "[]"))
    first.end("it was overtaken")
    second.beat()


def test_a_batch_that_does_not_follow_what_redis_holds_is_refused(ledger):
    held = Checkpoint(ledger, "m")
    held.take()
    held.commit(MixBatch(1, "{}", "[]"))
    held.commit(MixBatch(1, "{}", "[]"))
    with pytest.raises(MixLost):
        held.commit(MixBatch(3, "{}", "[]"))
    assert held.take().seq == 1


def test_a_producer_goes_on_when_redis_has_lost_its_last_moments(ledger, other, tmp_path):
    file = write_mix(tmp_path, ENDING, rows=6, head="backlog.high = 1000")
    serve(other, file)
    with serving(ledger, file, batch=4) as (server, sources, said):
        commit, batches = server.checkpoint.commit, []

        def lose(batch, **more):
            if batch.seq == 6 and not batches:
                batches.append(batch)
                ledger.client.hset("hq:mix:m", mapping=old)
            commit(batch, **more)
            if batch.seq == 3:
                names = ("seq", "state", "pending")
                found = ledger.client.hmget("hq:mix:m", names)
                old.update(zip(names, found, strict=True))

        old: dict[str, bytes] = {}
        server.checkpoint.commit = lose
        assert server.serve(sources)
    assert any("going on from what Redis holds" in line for line in said)
    assert rows_without_prefix(ledger) == rows_without_prefix(other)


def test_an_outage_of_redis_is_waited_for(ledger, other, redis_server, tmp_path, monkeypatch):
    monkeypatch.setattr("hermes_plugins.mix.server.OUTAGE_S", 0.05)
    file = write_mix(tmp_path, ENDING, rows=6, head="backlog.high = 1000")
    with closing(Ledger.connect(url=redis_server.url, timeout_s=1)) as mine:
        with serving(mine, file, batch=4) as (server, sources, said):
            commit, restarted = server.checkpoint.commit, []

            def interrupted(batch, **more):
                if batch.seq == 4 and not restarted:
                    restarted.append(redis_server.stop())
                    threading.Timer(0.2, redis_server.start).start()
                commit(batch, **more)

            server.checkpoint.commit = interrupted
            assert server.serve(sources)
        assert restarted
        assert any("waiting for Redis" in line for line in said)
        found = rows_without_prefix(mine)
    serve(other, file)
    assert found == rows_without_prefix(other)


def test_changed_rows_are_said_at_the_next_start(ledger, tmp_path):
    file = write_mix(tmp_path, {"a": "epochs = 1", "b": "epochs = 1"})
    serve(ledger, file)
    write_rows(tmp_path / "a.jsonl", range(1, 12))
    (tmp_path / "b.jsonl").unlink()
    file = write_mix(tmp_path, {"a": "epochs = 1", "c": "epochs = 1"})
    said = serve(ledger, file)
    assert "sources.a: rows: 2 added, 1 removed, 0 changed (10 before, 11 now)" in said
    assert "sources.c: is new" in said
    assert any(line.startswith("sources.b: is no longer in the file") for line in said)


def test_a_row_of_the_last_batch_that_is_gone_is_left_out_and_said(ledger, tmp_path):
    file = write_mix(tmp_path, {"a": "epochs = 1\nsampler = 'in_order'"}, rows=3)
    with serving(ledger, file) as (server, sources, _):

        def die(groups):
            raise KeyboardInterrupt

        server._send = die
        with pytest.raises(KeyboardInterrupt):
            server.serve(sources)
    assert jobs_in(ledger) == []
    write_rows(tmp_path / "a.jsonl", [0, 2])
    said = serve(ledger, file)
    assert "sources.a: a row of the last batch is gone; it is left out" in said
    assert [row.split()[-1] for row in rows_in(ledger)] != []
    assert {row.split()[-1] for row in rows_in(ledger)} == {"r0", "r2"}


def test_a_source_with_another_agent_is_refused_by_its_name(ledger, tmp_path):
    file = write_mix(tmp_path, {"a": "epochs = 1"})
    serve(ledger, file)
    file.write_text(file.read_text().replace("nop", "oracle"))
    with (
        serving(ledger, file) as (server, sources, _),
        pytest.raises(ConfigurationError, match=r"sources\.a: .* agent 'nop' \(now 'oracle'\)"),
    ):
        server.serve(sources)


def test_a_cancelled_run_ends_its_mix(ledger, tmp_path):
    file = write_mix(tmp_path, {"a": ""})
    stop = threading.Event()
    with serving(ledger, file, stop=stop) as (server, sources, _):
        enqueue = server._send
        server._send = lambda groups: (enqueue(groups), stop.set())
        assert not server.serve(sources)  # its last batch will be sent again
    Runs(ledger).cancel("m")
    with (
        serving(ledger, file) as (server, sources, _),
        pytest.raises(ConfigurationError, match=r"^run 'm' was cancelled; choose another name for"),
    ):
        server.serve(sources)


def test_a_mix_that_is_forgotten_draws_the_same_groups_which_are_not_enqueued_twice(
    ledger, tmp_path
):
    file = write_mix(tmp_path, ENDING)
    serve(ledger, file)
    before = jobs_in(ledger)
    ledger.client.hset("hq:mix:m", "until", "0")
    assert forget(ledger, "m")
    assert not forget(ledger, "m")
    with serving(ledger, file) as (server, sources, _):
        assert server.serve(sources)
        assert server.enqueued == 0
    assert jobs_in(ledger) == before


def test_live_settings_count_and_what_is_wrong_in_redis_is_said_and_ignored(ledger, tmp_path):
    file = write_mix(tmp_path, {"a": "epochs = 1", "b": ""}, head="backlog.high = 1000")
    Checkpoint(ledger, "m").take()
    tune(ledger, "m", {"b.items": "4"}, ["a", "b"])
    ledger.client.hset("hq:mix:m:live", "a.weight", "many")
    ledger.client.hset("hq:mix:m:live", "x.weight", "1")
    ledger.client.hset("hq:mix:m", "until", "0")
    said = serve(ledger, file)
    assert len(jobs_in(ledger)) == 14
    assert any(line.startswith("ignored: a.weight=many") for line in said)
    assert any(line.startswith("ignored: x.weight: there is no source") for line in said)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"a.weight": "-1"}, "use 0 .nothing of it., or 1e-06 to"),
        ({"a.weight": "nan"}, "use 0 .nothing of it., or 1e-06 to"),
        ({"a.size": "1"}, "there are weight, items, trajectories, pause"),
        ({"c.weight": "1"}, "there is no source 'c'"),
        ({"low": "1.5"}, "is no whole number"),
        ({"pause": "yes"}, "use true or false"),
        ({"speed": "1"}, "there are low, high, pause, and SOURCE.weight"),
    ],
)
def test_a_wrong_setting_changes_nothing(ledger, changes, said):
    Checkpoint(ledger, "m").take()
    with pytest.raises(ConfigurationError, match=said):
        tune(ledger, "m", {"high": "99", **changes}, ["a"])
    assert ledger.client.exists("hq:mix:m:live") == 0


@pytest.mark.parametrize("state", ["x", "[]", '{"version": 2}', '{"sources": {"a": {"at": -1}}}'])
def test_a_checkpoint_that_cannot_be_read_says_how_to_begin_anew(ledger, tmp_path, state):
    file = write_mix(tmp_path, {"a": ""})
    ledger.client.hset("hq:mix:m", mapping={"fence": "1", "seq": "1", "state": state})
    with (
        serving(ledger, file) as (server, sources, _),
        pytest.raises(ConfigurationError, match="hermes-queue mix forget m"),
    ):
        server.serve(sources)


def test_a_key_of_another_type_is_said(ledger):
    ledger.client.set("hq:mix:m", "x")
    with pytest.raises(ConfigurationError, match="is not what a mix keeps"):
        Checkpoint(ledger, "m").take()


def test_nothing_of_a_mix_stays_for_ever(ledger, tmp_path):
    serve(ledger, write_mix(tmp_path, {"a": "epochs = 1"}))
    tune(ledger, "m", {"a.weight": "2"}, ["a"])
    keys = ["hq:mix:m", "hq:mix:m:live", "hq:mix:m:rows", "hq:mixes"]
    assert all(ledger.client.ttl(key) > 0 for key in keys)
    assert json.loads(ledger.client.hget("hq:mix:m", "sources"))["a"]["rows"] == 10


def remembered(ledger, sources, model, rates):
    """The memory of tasks knows rows of a source by their ids: (scored, passed)."""
    seen = []
    for place in range(len(sources["a"].items)):
        stored = sources["a"].items.stored(place)
        scored, passed = rates.get(stored.selected.instance_id, (0, 0))
        for number in range(scored):
            score = float(number < passed)
            seen.append(Observation("gsm8k", stored.sha256, solver=Solver(model), score=score))
    TaskMemory(ledger).add(seen)


def test_the_memory_of_tasks_chooses_rows_for_the_sources_own_model(ledger, tmp_path):
    sampler = "sampler = { kind = 'pass_rate', explore = 1, outside = 0, revisit = 0 }"
    file = write_mix(tmp_path, {"a": f"epochs = 1\n{sampler}"}, rows=6)
    text = file.read_text().replace('"nop"', '"openai"\nmodel = "small"')
    file.write_text(text)
    with serving(ledger, file) as (server, sources, _):
        rates = {"r0": (8, 8), "r1": (8, 0), "r2": (8, 4), "r3": (8, 1), "r4": (2, 2)}
        remembered(ledger, sources, "small", rates)
        remembered(ledger, sources, "large", {"r5": (8, 8)})
        server._rates = FromMemory(TaskMemory(ledger))
        assert server.serve(sources)
    assert {row.split()[-1] for row in rows_in(ledger)} == {"r2", "r4", "r5"}


def test_what_is_too_long_for_a_setting_is_not_read(ledger):
    held = Checkpoint(ledger, "m")
    held.take()
    long = {"a.weight": "1" * 1_000_000, "x" * 1_000_000: "1", "b.weight": "2"}
    ledger.client.hset("hq:mix:m:live", mapping=long)
    assert held.beat().settings == {"b.weight": "2"}


@pytest.mark.parametrize("fence", ["x", "nan", "1e308", "1.5", "-1", ""])
def test_a_fence_that_others_wrote_stops_no_producer(ledger, fence):
    ledger.client.hset("hq:mix:m", mapping={"fence": fence, "until": "nan", "beats": "inf"})
    held = Checkpoint(ledger, "m")
    held.take()
    held.beat()
    held.commit(MixBatch(1, "{}", "[]"))


def test_a_number_of_a_batch_that_is_none_is_said(ledger):
    ledger.client.hset("hq:mix:m", "seq", "1.5")
    with pytest.raises(ConfigurationError, match="hermes-queue mix forget m"):
        Checkpoint(ledger, "m").take()


@pytest.mark.parametrize(
    ("paused_by", "limit"),
    [("budget", "budgets = { slot_hours = 2 }"), ("drift", "max_drift = 0.1")],
)
def test_a_mix_limits_its_run_and_resumes_it_at_its_next_start(ledger, tmp_path, paused_by, limit):
    file = write_mix(tmp_path, {"a": "epochs = 1"}, head=limit, rows=2)
    serve(ledger, file)
    limits = (accounts(ledger, "m", now=0)["slot_s"].limit, drift_of(ledger, "m").max_drift)
    assert limits == ((7200, None) if paused_by == "budget" else (None, 0.1))
    Runs(ledger).pause("m", "too much", by=paused_by)
    serve(ledger, file)
    assert Runs(ledger).paused("m") is None


def test_marks_without_room_between_them_are_refused_even_if_the_file_has_the_other(
    ledger, tmp_path, monkeypatch
):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", ledger.url)
    serve(ledger, write_mix(tmp_path, {"a": "epochs = 1"}, head="backlog = {low = 8, high = 16}"))
    for words in (["low=16"], ["high=8"], ["low=20", "high=20"]):
        done = CliRunner().invoke(cli, ["mix", "set", "m", *words])
        assert (done.exit_code, "must be below high=" in done.output) == (2, True)
    assert CliRunner().invoke(cli, ["mix", "set", "m", "low=20", "high=40"]).exit_code == 0
    assert CliRunner().invoke(cli, ["mix", "set", "m", "high="]).exit_code == 2


def test_marks_that_are_ignored_are_not_said_to_be_set(ledger, tmp_path):
    file = write_mix(tmp_path, {"a": "epochs = 1"}, head="backlog = {low = 8, high = 16}")
    Checkpoint(ledger, "m").take()
    ledger.client.hset("hq:mix:m:live", "low", "20")
    ledger.client.hset("hq:mix:m", "until", "0")
    said = serve(ledger, file)
    assert "ignored: low=20 is not below high=16: both ignored" in said
    assert "set: low=20" not in said
