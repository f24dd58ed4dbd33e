"""A viewer as the user `viewer` of Redis, and its actions as the user `operator`."""

from __future__ import annotations

from contextlib import closing

import pytest
from click.testing import CliRunner
from view_server import OPERATE_TOKEN, VIEW_TOKEN, ViewServer

from hermes_plugins.view.command import ViewOptions, open_site
from hermes_plugins.view.routes import every_route
from hermes_plugins.view.tokens import Keys
from hermes_queue.cli import cli
from hermes_queue.errors import RedisUnavailable

pytestmark = pytest.mark.xdist_group("view as a user")


def test_a_viewer_serves_every_page(worker, guarded, as_role, tmp_path, monkeypatch):
    flags = ("--items", "1", "--group-size", "2", "--run-id", "seen", "--follow")
    sent = as_role("operator", "producers.gsm8k", *flags)
    assert sent.returncode == 0, sent.stderr
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", guarded.url("viewer"))
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path))
    keys = Keys({"view": VIEW_TOKEN})
    with open_site(ViewOptions(), keys, 0) as site, closing(ViewServer(site)) as server:
        site.index.refresh()
        rows = server.get("/api/trajectories?q=run%3Aseen").json["rows"]
        assert sorted(row["score"] for row in rows) == [1.0, 1.0]
        [first, second] = rows
        two = f"?reference={first['id']}&other={second['id']}"
        ids = {"t": first["id"], "groups": first["group"], "runs": "seen"}
        for route in every_route():
            kind = route.path.split("/")[2] if route.path.startswith("/api/") else ""
            if route.method == "GET" and kind in ids:
                path = route.path.replace("{id}", ids[kind]).replace("{number}", "0")
                path += two if path.endswith("/patches") else ""
                is_there = "/tokens/" not in path and not path.endswith("/live/0")
                assert server.get(path).status == (200 if is_there else 404), path
        run = server.get("/api/runs/seen").json
        assert (run["count"], run["ledger"]["total"], run["ledger"]["done"]) == (2, 2, 2)
        assert server.get("/api/overview").json["runs"]
        assert server.get("/api/dead").json["letters"] == []
    for name, code in ((first["id"], 0), (first["group"], 0), ("seen.no.0", 2)):
        answer = CliRunner().invoke(cli, ["show", name])
        assert (answer.exit_code, "NOPERM" in answer.output) == (code, False), answer.output


def test_a_viewer_whose_operator_is_refused_says_so_at_the_start(guarded, tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", guarded.url("viewer"))
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path))
    wrong = guarded.url("operator").replace("operator:", "operator:not")
    monkeypatch.setenv("HERMES_QUEUE_VIEW_OPERATOR_REDIS_URL", wrong)
    with pytest.raises(RedisUnavailable, match="password in HERMES_QUEUE_VIEW_OPERATOR_REDIS_URL"):
        with open_site(ViewOptions(actions=True), Keys({"view": VIEW_TOKEN}), 0):
            pass


def test_pages_that_read_as_viewer_act_on_a_real_worker_as_operator(
    worker, guarded, tmp_path, monkeypatch
):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", guarded.url("viewer"))
    monkeypatch.setenv("HERMES_QUEUE_VIEW_OPERATOR_REDIS_URL", guarded.url("operator"))
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path))
    keys = Keys({"view": VIEW_TOKEN, "operate": OPERATE_TOKEN})
    with open_site(ViewOptions(actions=True), keys, 0) as site, closing(ViewServer(site)) as server:
        [seen] = server.get("/api/overview").json["workers"]
        for action, more in (
            ("worker_size", {"concurrency": seen["slots"] + 1}),
            ("worker_size", {"concurrency": seen["slots"]}),
            ("worker_pause", {}),
            ("worker_resume", {}),
        ):
            body = {"worker": seen["name"], **more}
            said = server.post(f"/api/actions/{action}", body, token=OPERATE_TOKEN)
            assert (action, said.status) == (action, 200), said.body
