"""Each page says what the commands say of the same deployment, served by the real command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ledger_steps import begin, enqueue
from records import make_job
from redis_server import RedisServer
from stream_groups import publish
from view_server import OPERATE_TOKEN, VIEW_TOKEN
from viewed import Viewed

from hermes_queue.ledger import Ledger, Runs

WORKER = {"name": "worker-1@host", "running": 3, "slots": 8, "sandboxes": 3, "lanes": ["train"]}
LETTER = {"reason": "killed 3 workers", "run_id": "done", "env": "gsm8k", "stage": "agent"}


def deploy(ledger: Ledger) -> None:
    """One run under way with failures, one that is done, one paused; a worker; dead letters."""
    publish(ledger, "apples", "pears", scores=(0.0, 1.0, 0.5, None), run="train", policy="7")
    publish(ledger, "plums", scores=(1.0, None), run="done")
    jobs = [make_job("train", f"cherries-{n}") for n in range(5)]
    enqueue(ledger, *jobs)
    for job in jobs[:3]:
        begin(ledger, job)
    enqueue(ledger, make_job("held", "figs"))
    Runs(ledger).pause("held", "the endpoint is down")
    client: Any = ledger.client
    client.zadd("hq:workers", {"owner": 1e12})
    facts = {**WORKER, "owner": "owner", "intake": "open", "beat_s": 60, "stages": {"agent": 3}}
    client.set("hq:worker:owner", json.dumps(facts), px=600_000)
    for cause in ("poison", "env_bug", "poison"):
        client.xadd("hq:dead", {**LETTER, "cause": cause, "trajectory_id": f"done.{cause}.0"})
    client.xgroup_create("hq:results", "trainer", id="0")


class Deployed:
    """The command `hermes-queue view` over a real Redis, and other commands beside it."""

    def __init__(self, redis: RedisServer, directory: Path) -> None:
        self.environment = {
            **os.environ,
            "HERMES_QUEUE_REDIS_URL": redis.url,
            "HERMES_QUEUE_PATHS_CACHE": str(directory / "cache"),
            "HERMES_QUEUE_ARCHIVE_DIRECTORY": str(directory / "archive"),
            "HERMES_QUEUE_VIEW_TOKEN": VIEW_TOKEN,
            "HERMES_QUEUE_VIEW_OPERATOR_TOKEN": OPERATE_TOKEN,
        }
        self._process = subprocess.Popen(
            [*self._command("view"), "--port", "0"],
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip().partition("/#token=")[0]

    @staticmethod
    def _command(*arguments: object) -> list[str]:
        return [sys.executable, "-m", "hermes_queue.cli", *map(str, arguments)]

    def run(self, *arguments: object) -> str:
        """What a command prints."""
        done = subprocess.run(
            self._command(*arguments),
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout

    def json(self, *arguments: object) -> list[Any]:
        """The JSON lines that a command prints."""
        return [json.loads(line) for line in self.run(*arguments, "--json").splitlines()]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def deployed(redis_binary, tmp_path_factory) -> Iterator[Deployed]:
    directory = tmp_path_factory.mktemp("deployed")
    redis = RedisServer(redis_binary, directory / "redis")
    redis.start()
    try:
        with redis.client(decode_responses=False) as client:
            deploy(Ledger(client, prefix="hq:", url=redis.url))
        made = Deployed(redis, directory)
        try:
            yield made
        finally:
            made.close()
    finally:
        redis.close()


@pytest.fixture(scope="module")
def seen(deployed, tmp_path_factory) -> Iterator[Viewed]:
    pages: Any = SimpleNamespace(address=deployed.address)
    browser = Viewed(pages, tmp_path_factory.mktemp("profile"))
    try:
        browser.login()
        yield browser
    finally:
        assert browser.breaches == []
        browser.close()


def table(viewed: Viewed, selector: str) -> list[list[str]]:
    """The cells of each row of a table."""
    script = """return [...document.querySelectorAll(`${arguments[0]} tbody tr`)]
      .map((row) => [...row.cells].map((cell) => cell.textContent));"""
    return [
        [re.sub(r"\s+", " ", cell).strip() for cell in row] for row in viewed.run(script, selector)
    ]


def facts(viewed: Viewed) -> dict[str, str]:
    return dict(zip(viewed.texts(".facts dt"), viewed.texts(".facts dd"), strict=True))


def as_score(value: float | None) -> str:
    """A score as the pages write it."""
    if value is None:
        return "\u2013"
    return f"{value:.1f}" if value == int(value) else f"{value:.2f}".removeprefix("0")


def ended(run: dict[str, Any]) -> int:
    return int(run["finished"] + run["failed"] + run["cancelled"])


def test_the_first_page_has_the_runs_of_run_list(seen, deployed):
    seen.open("/")
    wanted = {run["run_id"]: run for run in deployed.json("run", "list")}
    seen.wait("all runs, live", lambda: len(table(seen, "table.rows")) == len(wanted) == 3)
    seen.wait("live", lambda: "live" in seen.texts(".pulse")[0])
    for name, state, done, _, failed, running, *_ in table(seen, "table.rows"):
        run = wanted[name]
        assert state == run["state"]
        assert done == f"{ended(run)}/{run['total']}"
        assert failed == str(run["failed"])
        assert running == (str(run["running"]) if run["running"] else "")


def test_the_first_page_has_the_numbers_of_status_and_top(seen, deployed):
    seen.open("/")
    seen.wait("live", lambda: seen.texts("[aria-labelledby=workers] tbody th"))
    [status] = deployed.json("status")
    lanes = [row[:5] for row in table(seen, "[aria-labelledby=lanes] table")]
    shown = [[name, waiting, running, workers] for name, waiting, _, running, workers in lanes]
    assert shown == [
        [lane["name"], str(lane["depth"]), str(lane["running"]), str(lane["workers"])]
        for lane in status["lanes"]
    ]
    [worker] = table(seen, "[aria-labelledby=workers] table")
    assert worker[:4] == ["worker-1@host", "3/8", "agent 3", "3"]
    slots = sum(each["slots"] for each in status["workers"])
    waiting = sum(lane["depth"] for lane in status["lanes"])
    assert seen.texts(".totals")[0].endswith(
        f"running {status['leased']}/{slots} waiting {waiting}"
    )
    [reader] = table(seen, "[aria-labelledby=results] table")
    [group] = status["stream"]["readers"]
    assert reader == [group["name"], str(group["behind"]), str(group["pending"])]
    assert seen.texts("#results .quiet") == [f"{status['stream']['groups']} groups"]
    assert seen.texts(".count") == [str(status["dead_letters"])]
    top = deployed.run("top", "--once")
    assert f"{status['leased']}/{slots}" in top.replace(" ", "")
    assert "worker-1@host" in top


def test_a_run_has_the_numbers_of_run_show_and_the_rows_of_an_export(seen, deployed, tmp_path):
    for name in ("train", "done", "held"):
        seen.open(f"/run/{name}")
        [run] = deployed.json("run", "show", name)
        parts = (
            f"{ended(run)}/{run['total']}",
            f"{run['running']} running",
            f"{run['queued']} waiting",
            f"{run['failed']} failed",
        )
        shown = seen.texts(".progress")[0]
        assert [part for part in parts if part not in shown] == []
        out = tmp_path / f"{name}.jsonl"
        deployed.run("export", "--format", "jsonl", "--run", name, "--out", out, "--quiet")
        written = [json.loads(line) for line in out.read_text().splitlines()]
        scores = [each["score"] for each in written if each["score"] is not None]
        said = facts(seen)
        assert said["trajectories"] == str(len(written))
        assert said["scored"] == str(len(scores))
        assert said["failed"] == str(len(written) - len(scores))
        assert said["mean score"] == as_score(sum(scores) / len(scores) if scores else None)
        rows = sorted(row[1] for row in table(seen, "table.rows"))
        assert rows == sorted(f"{each['instance_id']} #{each['sample_index']}" for each in written)


def test_a_group_and_a_trajectory_have_the_numbers_of_show(seen, deployed):
    seen.open("/run/train")
    name = seen.run("return document.querySelector('table.rows tbody a').getAttribute('href');")
    one = name.removeprefix("/t/").partition("?")[0]
    group = one.rpartition(".")[0]
    members = deployed.json("show", group)
    seen.open(f"/group/{group}")
    shown = [row[1:3] for row in table(seen, "table.rows")]
    assert shown == [[f"#{each['sample_index']}", as_score(each["score"])] for each in members]
    for member in members:
        seen.open(f"/t/{member['trajectory_id']}")
        assert seen.texts(".title .score") == [as_score(member["score"])]
        said = facts(seen)
        assert said["turns"] == str(len(member["turns"]))
        assert said.get("policy", "") == (member["policy_newest"] or "")
        assert len(seen.all("article.message")) == len(member["messages"])


def test_dead_letters_are_those_of_dead_list(seen, deployed):
    for query, flags in (("", ()), ("cause:poison", ("--cause", "poison"))):
        letters = deployed.json("dead", "list", *flags)[::-1]
        seen.open("/dead", q=query or None)
        shown = [(row[0], row[2], row[4]) for row in table(seen, "table.rows")]
        assert shown == [(f"✗ {x['cause']}", x["trajectory_id"], x["reason"]) for x in letters]
        assert seen.texts(".title .quiet") == [str(len(letters))]


def test_the_list_of_all_has_as_many_as_an_export(seen, deployed, tmp_path):
    out = tmp_path / "all.jsonl"
    deployed.run("export", "--format", "jsonl", "--out", out, "--quiet")
    count = len(out.read_text().splitlines())
    seen.open("/all")
    assert seen.texts(".pages [aria-live]")[0] == f"{count} trajectories"
    failed = sum(json.loads(line)["score"] is None for line in out.read_text().splitlines())
    seen.open("/all", q="status:failed")
    assert seen.texts(".pages [aria-live]")[0] == f"{failed} trajectories"
