"""`hermes-queue status` and `top` show the deployment, and keep to the terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner
from ledger_steps import begin
from records import make_job
from rich.console import Console

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.cli import cli
from hermes_queue.cli.overview import overview
from hermes_queue.cli.watch.screen import frame
from hermes_queue.cli.watch.scrolling import Scrolling
from hermes_queue.cli.watch.status import named
from hermes_queue.ledger import Breakers, Ledger, Runs
from hermes_queue.ledger.accounts.goodput import add_report
from hermes_queue.ledger.accounts.shared import SharedBudgets
from hermes_queue.ledger.answers import RunPart
from hermes_queue.ledger.fleet.lanes import EndedAttempts, Watched, note_lanes, pause_lane
from hermes_queue.ledger.fleet.pacing import set_pace
from hermes_queue.ledger.fleet.tally import Tally
from hermes_queue.ledger.scheduling import Shares
from hermes_queue.terminal.output import console

ITEM = {"question": "1+1", "answer": "#### 2"}


@pytest.fixture
def ledger(redis_server, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    found = Ledger.connect()
    yield found
    found.close()


def beat(ledger, name, **facts):
    defaults = {"name": name, "lanes": ["train"], "slots": 4, "running": 4, "beat_s": 40.0}
    oldest = [
        {
            "trajectory_id": f"run.{name}.{n}",
            "label": f"swe_smith:{name}-{n}#0",
            "stage": "agent",
            "age_s": 10.0 * n,
            "turns": n,
            "attempt": 1,
        }
        for n in range(10)
    ]
    facts = {**defaults, "intake": "open", "stages": {"agent": 4}, "oldest": oldest, **facts}
    ledger.beat(name, {"owner": name, **facts}, ttl_s=40)


def jobs(run_id, count):
    return [make_job(run_id, f"i{n}", item=ITEM) for n in range(count)]


def status(*words):
    result = CliRunner().invoke(cli, ["status", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_waiting_lane_shows_how_many_wait_and_for_how_long(ledger):
    enqueue(jobs("run", 3), ledger=ledger)
    ledger.client.zadd(
        "hq:waiting", {job.trajectory_id: time.time() - 600 for job in jobs("run", 3)}
    )
    [lane] = json.loads(status("--json"))["lanes"]
    assert (lane["name"], lane["depth"], lane["workers"]) == ("train", 3, 0)
    assert 599 < lane["oldest_s"] < 700
    assert "no worker serves it" in status()


def test_workers_and_their_oldest_trajectories_are_shown(ledger):
    beat(ledger, "a@host", intake="paused", spooled=3)
    beat(ledger, "b@host")
    seen = json.loads(status("--json"))
    assert [worker["name"] for worker in seen["workers"]] == ["a@host", "b@host"]
    ages = [each["age_s"] for each in seen["oldest"]]
    assert ages == sorted(ages, reverse=True)
    text = status()
    assert "3 in spool" in text
    assert "swe_smith:b@host-9#0" in text


def test_the_eta_follows_from_what_ended_in_the_last_minutes(ledger):
    enqueue(jobs("run", 10), ledger=ledger)
    ledger.client.hset("hq:run:run", "created", time.time() - 3600)
    Tally(ledger).add(attempts={"": 5}, ended={"run": 5})
    [run] = overview(ledger).runs
    assert 480 <= 5 * 3600 / run.per_hour <= 600 + 1  # as many seconds as the window has
    assert run.eta_s == pytest.approx(10 * 3600 / run.per_hour, rel=0.05)


def test_a_run_that_is_paused_or_has_ended_nothing_has_no_eta(ledger):
    enqueue(jobs("slow", 2), ledger=ledger)
    enqueue(jobs("held", 2), ledger=ledger)
    Tally(ledger).add(attempts={}, ended={"held": 1})
    Runs(ledger).pause("held", "endpoint is down")
    assert {run.info.run_id: run.eta_s for run in overview(ledger).runs} == {
        "slow": None,
        "held": None,
    }
    assert "operator: endpoint is down" in status()


def test_a_run_that_waits_for_its_trainer_says_so(ledger):
    enqueue(jobs("run", 2), ledger=ledger)
    set_pace(ledger, "run", 1)
    for job in jobs("run", 2):
        ledger.begin(job.trajectory_id, 1, owner="w", lease_s=9, nonce=job.trajectory_id)
    assert "PACED run: 1 of 1 groups ahead of the trainer; 1 jobs wait since 0 s" in status()


def test_failures_are_counted_by_cause(ledger):
    Tally(ledger).add(attempts={"": 90, "sandbox": 7, "model": 3}, ended={})
    assert "sandbox 7, model 3 of 100 attempts" in status()


def test_a_lane_paused_by_hand_stays_paused_whatever_its_attempts_do(ledger):
    note_lanes(ledger, ["train"])
    pause_lane(ledger, "train", "new image")
    assert Breakers(ledger).record(Watched("train"), {"": EndedAttempts(50)}) == ""
    assert "paused (operator): new image" in status()


def test_nothing_of_it_stays_for_ever(ledger):
    note_lanes(ledger, ["train"])
    pause_lane(ledger, "train")
    beat(ledger, "a@host")
    Tally(ledger).add(attempts={"": 1}, ended={"r": 1})
    assert all(ledger.client.ttl(key) > 0 for key in ledger.client.keys("*"))


def test_a_silent_worker_is_forgotten(ledger):
    ledger.beat("gone", {"owner": "gone"}, ttl_s=0.05)
    time.sleep(0.1)
    assert ledger.workers() == []
    beat(ledger, "a@host")
    assert ledger.client.zrange("hq:workers", 0, -1) == [b"a@host"]


def test_a_run_alone_is_its_counters(ledger):
    enqueue(jobs("run", 3), ledger=ledger)
    lines = [line.split() for line in status("run").splitlines()]
    assert lines[:2] == [["total", "3"], ["queued", "3"]]
    assert ["failed", "0"] in lines
    assert "stale" not in status("run")
    counters = json.loads(status("run", "--json"))
    assert (counters["queued"], counters["stale"]) == (3, 0)
    assert "unknown" in CliRunner().invoke(cli, ["status", "nope"]).output


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (80, 18)])
def test_a_frame_fits_the_terminal_however_much_there_is_to_show(ledger, width, height):
    for number in range(12):
        enqueue(jobs(f"a-run-with-quite-a-long-name-{number}", 1), ledger=ledger)
        beat(ledger, f"a-worker-with-a-long-name-{number}@a-host-with-a-long-name")
        note_lanes(ledger, [f"lane-{number}"])
    pause_lane(ledger, "train", "a reason that is much longer than any line of any terminal " * 5)
    console = Console(width=width, height=height, highlight=False)
    with console.capture() as capture:
        console.print(frame(overview(ledger), height=height, note="no Redis " * 30))
    lines = capture.get().splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    for heading in ("RUN ", "LANE ", "WORKER ", "SLOWEST", "FAILURES", "RESULTS"):
        assert any(heading in line for line in lines), heading
    assert sum("swe_smith:" in line for line in lines) >= 1


class Terminal:
    """`hermes-queue top` on a terminal of 80x24."""

    def __init__(self, url):
        self.screen, self._master = "", None
        self._master, slave = pty.openpty()
        environment = {**os.environ, "HERMES_QUEUE_REDIS_URL": url, "TERM": "xterm"}
        environment |= {"COLUMNS": "80", "LINES": "24"}
        # setsid: the terminal is the program's own, so that Ctrl-C reaches it.
        command = [
            "setsid",
            "--ctty",
            sys.executable,
            "-m",
            "hermes_queue.cli",
            "top",
            "--interval",
            "0.2",
        ]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True
        )
        os.close(slave)

    def wait_for(self, pattern, timeout_s=60.0):
        """Until the screen says so; what was drawn before is forgotten."""
        self.screen = ""
        deadline = time.monotonic() + timeout_s
        while not re.search(pattern, self.screen):
            assert time.monotonic() < deadline, self.screen[-3000:]
            self.screen += self._read()

    def _read(self):
        if not select.select([self._master], [], [], 0.1)[0]:
            return ""
        try:
            return os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # how Linux says that the other side is closed
            assert self.process.wait(10) is not None
            return ""

    def type(self, key):
        os.write(self._master, key)

    def end(self):
        """The exit code; the terminal is read meanwhile, or the program could not write."""
        deadline = time.monotonic() + 120
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read()
        if self.process.poll() is None:
            self.process.kill()
        os.close(self._master)
        return self.process.wait()


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "ctrl-c"])
def test_top_lives_through_an_outage_of_redis_and_ends_with_a_key(ledger, redis_server, key):
    enqueue(jobs("run", 3), ledger=ledger)
    terminal = Terminal(redis_server.url)
    try:
        terminal.wait_for(r"0/3")
        redis_server.stop()
        terminal.wait_for(r"NO REDIS for \d+ s")
        redis_server.start()
        enqueue(jobs("other", 7), ledger=ledger)
        terminal.wait_for(r"0/7")
        terminal.type(key)
    finally:
        code = terminal.end()
    assert code == 0


def lease(ledger, count, owner="w1"):
    """So many trajectories that run, the first one for the longest time."""
    now = ledger.client.time()[0]
    with ledger.client.pipeline() as pipe:
        for n in range(count):
            name = f"run.{n:04}.0"
            pipe.zadd("hq:leases", {name: now + 100})
            facts = {"owner": owner, "stage": "verify", "begun": now - 9000 + n, "attempt": 2}
            pipe.hset(f"hq:traj:{name}", mapping={**facts, "lane": "train", "state": "running"})
        pipe.execute()


def slots(*words):
    result = CliRunner().invoke(cli, ["workers", "slots", "--all", *words])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_every_trajectory_that_runs_is_listed_with_stage_age_and_host_page_by_page(ledger):
    beat(ledger, "w1", host="host-1", running=250, oldest=[])
    lease(ledger, 250)
    heading, *rows, end = slots()
    assert heading.split() == ["AGE", "STAGE", "TRY", "LANE", "WORKER", "HOST", "TRAJECTORY"]
    assert rows[0].split() == ["2.5", "h", "verify", "2", "train", "w1", "host-1", "run.0000.0"]
    assert (len(rows), end) == (200, "1 to 200 of 250 that run; --page 2 has more")
    _, *rest, end = slots("--page", "2")
    assert [row.split()[-1] for row in rest] == [f"run.{n:04}.0" for n in range(200, 250)]
    assert end == "201 to 250 of 250 that run"
    listed = [json.loads(line) for line in slots("--json", "--rows", "300")]
    assert [each["host"] for each in listed] == ["host-1"] * 250
    assert slots("--page", "9")[-1] == "none on page 9, of 250 that run"


def test_trajectories_of_one_worker_and_those_of_a_silent_one_are_told_apart(ledger):
    beat(ledger, "w1", host="host-1", oldest=[])
    lease(ledger, 3, owner="gone")
    ledger.client.hset("hq:traj:run.0001.0", "owner", "w1")
    assert [row.split()[-1] for row in slots("w1")[1:-1]] == ["run.0001.0"]
    assert "gone" in slots()[1]
    unknown = CliRunner().invoke(cli, ["workers", "slots", "--all", "nobody"])
    assert (unknown.exit_code, "no worker 'nobody'" in unknown.output) == (1, True)


def test_what_redis_holds_in_place_of_a_trajectory_is_listed_as_unknown(ledger):
    lease(ledger, 2)
    ledger.client.set("hq:traj:run.0000.0", "no hash")
    ledger.client.hset("hq:traj:run.0001.0", mapping={"begun": "x", "stage": "\x1b[2J\u202e"})
    output = "\n".join(slots())
    assert not {"\x1b", "\u202e"} & set(output)
    assert "2 of 2 that run" in output


def test_names_that_look_like_markup_or_controls_do_nothing_to_the_screen(ledger):
    rude = {
        "trajectory_id": "run.x.0",
        "label": "gsm8k:[/red]\x1b[2J\u202e#0",
        "stage": "[bold",
        "age_s": 1.0,
        "turns": 0,
        "attempt": 1,
    }
    beat(ledger, "w1", oldest=[rude])
    screen = console(width=120, highlight=False)
    with screen.capture() as capture:
        screen.print(frame(overview(ledger)))
    assert "gsm8k:[/red]␛[2J⟨U+202E⟩#0" in capture.get()


def test_top_scrolls_through_all_that_runs_and_keeps_its_order(ledger, redis_server):
    lease(ledger, 300)
    terminal = Terminal(redis_server.url)
    try:
        terminal.wait_for("SLOWEST")
        terminal.type(b"\x1b[Z")  # from none back to the last table
        terminal.wait_for(r"run\.0000\.0[\s\S]*and \d+ more")
        terminal.type(b"\x1b[6~")
        terminal.wait_for(r"run\.0012\.0[\s\S]*of 300")
        terminal.type(b"\x1b[F")
        terminal.wait_for(r"run\.0299\.0[\s\S]*of 300")
        terminal.type(b"\x1b[A\x1b[H")
        terminal.wait_for(r"run\.0000\.0[\s\S]*run\.0001\.0[\s\S]*and \d+ more")
        terminal.type(b"q")
    finally:
        code = terminal.end()
    assert code == 0


def test_a_table_that_is_chosen_shows_all_its_rows_one_page_after_the_other(ledger):
    for number in range(40):
        note_lanes(ledger, [f"lane-{number:02}"])
    seen, scrolling = overview(ledger), Scrolling()
    shown = set()
    for key in ("next", "next", *["page down"] * 10):
        scrolling.press(key)
        console = Console(width=100, height=24, highlight=False)
        with console.capture() as capture:
            console.print(frame(seen, height=24, scrolling=scrolling))
        assert len(capture.get().splitlines()) <= 24
        shown |= set(re.findall(r"lane-\d\d", capture.get()))
    assert len(shown) == 40
    scrolling.press("home")
    assert scrolling.first[1] == 0


def test_keys_of_terminals_have_names_and_nonsense_has_none():
    sent = "\x1b[5~\x1b[6~\x1bOA\x1b[B\t\x1b[Zq\x1b[200~\x1b\x1b[99;9Rj"
    found = named(sent)
    assert found[:7] == ["page up", "page down", "up", "down", "next", "back", "q"]
    assert found[-1] == "down"


def test_without_redis_both_end_with_the_exit_code_of_redis(monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", "redis://127.0.0.1:1/0")
    for words in (["status"], ["top", "--once"]):
        result = CliRunner().invoke(cli, words)
        assert (result.exit_code, "cannot be reached" in result.output) == (4, True)


def test_top_says_what_slots_have_brought_and_where_most_of_their_time_was_lost(ledger):
    assert "GOODPUT last hour: no lease has ended" in status()
    sums = {"s|model": 30, "s|death": 6, "s|retry:model": 3, "s|surplus": 1, "c|scored": 2}
    sums |= {"s|cancelled": 0.1, "usd|measured": 0.5}
    counts = [("run", name, by) for name, by in sums.items()]
    add_report(ledger, "w1", 1, counts=counts, moments=(), slow=())
    text = " ".join(status().split())
    assert "GOODPUT 180 per slot-hour, 4 per US$, 75 % of slot-time scored; lost:" in text
    assert "death 15" in text


def test_a_budget_for_whose_room_jobs_wait_is_named(ledger):
    SharedBudgets(ledger).set("team:red", {"tokens": 1})
    assert "BUDGET" not in status()
    job = make_job("r1")
    ledger.enqueue("r1", [job], config={}, part=RunPart("red"))
    ledger.published([job.trajectory_id])
    ledger.client.hset("hq:budget:team:red", "spent:tokens", 1)
    assert begin(ledger, job).verdict == "over_budget"
    assert "BUDGET team:red has no room: 1 waiting; see hermes-queue budget list" in status()


def test_a_limit_at_which_jobs_wait_is_named(ledger):
    Shares(ledger).change("env", "gsm8k", {"max_running": 0})
    assert "AT LIMIT" not in status()
    job = make_job("r1")
    ledger.enqueue("r1", [job], config={})
    ledger.published([job.trajectory_id])
    next_one = {"lease_s": 60.0, "nonce": "1", "lanes": ("train",), "slot": 1}
    assert ledger.begin("gone.x.0", 1, owner="w1", **next_one).verdict != "run"
    assert "AT LIMIT env gsm8k; see hermes-queue shares list" in status()


def test_what_model_calls_fail_of_is_named(ledger):
    beat(ledger, "w1", trouble={"r1": "429, 3 tries\x1b[2J"})
    assert "model r1: 429, 3 tries␛[2J" in status()


def test_an_unknown_run_is_a_wrong_name(ledger):
    result = CliRunner().invoke(cli, ["status", "nosuch"])
    assert (result.exit_code, "run 'nosuch' is unknown" in result.output) == (2, True)


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_an_interval_has_to_be_finite(ledger, number):
    result = CliRunner().invoke(cli, ["top", "--once", "--interval", number])
    assert (result.exit_code, "is no finite number" in result.output) == (2, True)


@pytest.mark.parametrize("words", [["status"], ["run", "list"], ["shares", "list"]])
def test_a_wrong_setting_is_one_line_without_its_value(monkeypatch, words):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", "redes://worker:secret@redis:6379/0")
    result = CliRunner().invoke(cli, words)
    assert (result.exit_code, "secret" in result.output) == (2, False)
    assert result.output.startswith("error: HERMES_QUEUE_REDIS_URL: must start with redis://")


def test_a_user_without_rights_is_told_so(ledger, monkeypatch):
    ledger.client.acl_setuser("weak", enabled=True, passwords=["+pw"], commands=["+ping", "+info"])
    url = ledger.url.replace("redis://", "redis://weak:pw@").replace("unix://", "unix://weak:pw@")
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", url)
    result = CliRunner().invoke(cli, ["workers", "slots", "--all"])
    assert (result.exit_code, "refuses us (this user has no permissions" in result.output) == (
        4,
        True,
    )
