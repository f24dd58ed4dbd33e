"""Pages of a deployment whose Redis is away: people look when something is wrong."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
import redis
from ports import free_port
from redis.backoff import NoBackoff
from redis.retry import Retry
from view_server import ViewServer

from hermes_queue.errors import RedisUnavailable
from hermes_queue.ledger import Ledger

pytestmark = pytest.mark.xdist_group("view")


def away() -> None:
    raise RedisUnavailable("Redis cannot be reached")


def test_what_the_index_knows_is_shown_and_the_rest_says_why_not(server):
    client = redis.Redis(port=free_port(), retry=Retry(NoBackoff(), 0))
    site = replace(server.site, ledger=Ledger(client, prefix="hq:"), overview=away)
    with closing(ViewServer(site)) as served:
        found = served.get("/api/runs").json
        assert {run["run"] for run in found["runs"]} == {"run", "strange"}
        assert "cannot be reached" in found["problems"][0]
        assert served.get("/api/runs/run").json["ledger"] is None
        assert served.get("/api/runs/nobody").status == 404
        assert served.get("/api/trajectories").status == 200
        for path in ("/api/overview", "/api/dead", "/api/dead/1-0"):
            said = served.get(path)
            assert (said.status, "Redis" in said.json["error"]) == (503, True)
    client.close()


def test_a_server_that_ends_leaves_another_one_of_the_same_site_alone(server):
    with closing(ViewServer(server.site)) as other:
        ended = other.site.stopping
    assert ended.is_set()
    assert not server.site.stopping.is_set()
