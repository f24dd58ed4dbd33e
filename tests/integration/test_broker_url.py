"""Celery's connections are made under the same Redis user as ours."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from redis_server import RedisServer

from hermes_queue.broker.app import app, broker_url

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
