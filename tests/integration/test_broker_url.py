"""Celery's connections are made under the same Redis user as ours."""

from __future__ import annotations

from types import SimpleNamespace
from urllib.parse import quote

import pytest
from redis_server import RedisServer

from hermes_queue.broker.app import _refuse_other_pools, app
from hermes_queue.errors import ConfigurationError
from hermes_queue.settings.redis import broker_url

PASSWORD = "a:b/c@d?e%41"


@pytest.mark.parametrize(
    "form",
    ["unix://worker:{secret}@{path}?db=0", "unix://{path}?db=0&username=worker&password={secret}"],
    ids=["in-front", "in-the-query"],
)
def test_the_user_of_a_unix_url_is_celerys_too(redis_server: RedisServer, form: str) -> None:
    with redis_server.client() as admin:
        everything = ("~*", "&*", "+@all")
        admin.execute_command("ACL", "SETUSER", "worker", "on", f">{PASSWORD}", *everything)
        # Of the same password: a connection that loses its user would be let in as another.
        admin.execute_command("ACL", "SETUSER", "default", "resetpass", f">{PASSWORD}", "-@write")
    url = form.format(secret=quote(PASSWORD, safe=""), path=redis_server.socket_path)
    with app.connection_for_write(broker_url(url)) as broker:
        assert broker.default_channel.client.lpush("queue", "message") == 1


@pytest.mark.parametrize(
    ("url", "celerys"),
    [
        ("redis://u:p@h:1/3", "redis://u:p@h:1/3"),
        ("redis://u:p@h:1?db=3", "redis://u:p@h:1/3"),
        ("rediss://h/1?db=3&ssl_cert_reqs=none", "rediss://h/3?ssl_cert_reqs=none"),
    ],
)
def test_a_database_in_the_query_is_celerys_too(url: str, celerys: str) -> None:
    assert broker_url(url) == celerys
    with app.connection_for_write(broker_url(url)) as broker:
        assert broker.virtual_host == "3"


@pytest.mark.parametrize("pool", ["solo", "threads", "celery.concurrency.solo:TaskPool"])
def test_a_worker_with_a_pool_that_runs_no_trajectories_does_not_start(
    pool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _refuse_other_pools(SimpleNamespace(app=app, pool_cls=pool))
    assert ended.value.code == ConfigurationError.exit_code
    assert "without -P" in capsys.readouterr().err


def test_a_worker_with_our_pool_starts() -> None:
    _refuse_other_pools(SimpleNamespace(app=app, pool_cls=app.conf.worker_pool))
