"""URLs of Redis: what they mean, what is refused with which advice, and what logs see of them."""

from __future__ import annotations

import traceback

import pytest
from pydantic import SecretStr, ValidationError

from hermes_queue import consume
from hermes_queue.broker.app import connection_settings
from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import connect_async, masked, redis_url
from hermes_queue.settings import RedisSettings
from hermes_queue.settings.redis import SentinelAddress, broker_url

PASSWORD = "p:w/@?%41"
QUOTED = "p%3Aw%2F%40%3F%2541"


def settings(url: str, **more: object) -> RedisSettings:
    return RedisSettings(url=SecretStr(url), **more)


def test_a_sentinel_url_names_sentinels_master_database_and_user():
    found = SentinelAddress.parse(f"sentinel://u:{QUOTED}@a:1,[::1]:2,c/main/3")
    assert found == SentinelAddress(
        (("a", 1), ("::1", 2), ("c", 26379)), "main", 3, "u", PASSWORD, tls=False
    )


def test_database_and_user_may_be_left_out():
    found = SentinelAddress.parse("sentinel+tls://a:1/main")
    assert found == SentinelAddress((("a", 1),), "main", tls=True)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("sentinel://a:1,b:2", "names no master; write it after the hosts"),
        ("sentinel://a:1;b:2/hq", "with commas in between"),
        ("sentinel://a:1,,b:2/hq", "is not HOST:PORT"),
        ("sentinel://a:99999/hq", "the port must be a number up to 65535"),
        ("sentinel://a:0/hq", "the port must be a number up to 65535"),
        ("sentinel://a:1/hq/one", "database 'one' is not a number"),
        ("sentinel://a:1/hq/²", "is not a number"),
        ("sentinel://a:1/hq?ssl_ca_certs=x", r"needs sentinel\+tls://"),
        ("sentinel+tls://a:1/hq?socket_timeout=1", "does not take socket_timeout"),
        (
            "sentinels://a:1/hq",
            r"must start with redis://, .* sentinel://HOST:PORT,HOST:PORT/MASTER",
        ),
    ],
)
def test_a_wrong_url_is_refused_with_what_to_write(url, advice):
    with pytest.raises(ValidationError, match=advice):
        settings(url)
    with pytest.raises(ConfigurationError, match=advice):
        redis_url(RedisSettings(), url)


@pytest.mark.parametrize(
    "url",
    [
        f"sentinel://u:{QUOTED}@a:1,b:2/hq/0",
        "redis://u:p@w:%d@h:1/0".replace("%d", "x"),
        "unix:///run/redis.sock?db=0&username=u&password=secret",
        "rediss://h/0?password=secret&ssl_ca_certs=/ca.pem",
    ],
)
def test_no_password_is_left_in_what_is_logged(url):
    shown = masked(url)
    assert "***" in shown
    assert not any(secret in shown for secret in (QUOTED, "p@w", "secret"))


@pytest.mark.parametrize("password", ["half/secret", "half?secret", "26379/secret"])
def test_a_password_that_has_to_be_quoted_is_not_shown_as_a_host(password):
    with pytest.raises(ConfigurationError, match="%2F for /") as refused:
        redis_url(RedisSettings(), f"sentinel://worker:{password}@a:1,b:2/hq/0")
    assert "half" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_sentinel_url_is_celerys_list_of_urls():
    url = f"sentinel://u:{QUOTED}@a:1,[::1]:2/main/3"
    assert broker_url(url) == f"sentinel://u:{QUOTED}@a:1/3;sentinel://[::1]:2"
    made = connection_settings(settings(url, sentinel_password=SecretStr("of sentinels")))
    options = made["broker_transport_options"]
    assert options["master_name"] == "main"
    assert options["sentinel_kwargs"]["password"] == "of sentinels"
    assert options["socket_timeout"] == 10.0
    assert "broker_use_ssl" not in made


def test_tls_settings_go_to_ours_and_to_celerys_connections(tmp_path):
    for name in ("ca", "cert", "key"):
        (tmp_path / name).touch()
    files = {f"tls_{name}": tmp_path / name for name in ("ca", "cert", "key")}
    expected = {
        "ssl_ca_certs": str(tmp_path / "ca"),
        "ssl_certfile": str(tmp_path / "cert"),
        "ssl_keyfile": str(tmp_path / "key"),
        "ssl_check_hostname": True,
    }
    of_sentinels = connection_settings(settings("sentinel+tls://a:1/hq", **files))
    assert of_sentinels["broker_use_ssl"] == expected
    assert of_sentinels["broker_transport_options"]["sentinel_kwargs"]["ssl"] is True
    of_one = connection_settings(settings("rediss://h:1/2", **files))
    assert of_one["broker_url"].startswith("rediss://h:1/2?ssl_ca_certs=")
    client = connect_async(settings("rediss://h:1/2", **files))
    assert client.connection_pool.connection_kwargs.items() >= expected.items()


def test_what_the_url_says_of_tls_wins(tmp_path):
    (tmp_path / "ca").touch()
    url = "sentinel+tls://a:1/hq?ssl_ca_certs=/other.pem&ssl_check_hostname=false"
    options = settings(url, tls_ca=tmp_path / "ca").tls_options(url)
    assert options == {"ssl_ca_certs": "/other.pem", "ssl_check_hostname": False}


def test_tls_files_beside_a_url_without_tls_are_refused(tmp_path):
    (tmp_path / "ca").touch()
    with pytest.raises(ValidationError, match="speaks no TLS: let it begin with rediss://"):
        settings("redis://h", tls_ca=tmp_path / "ca")
    with pytest.raises(ValidationError, match=r"let it begin with sentinel\+tls://"):
        settings("sentinel://h/hq", tls_ca=tmp_path / "ca")


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(ValidationError, match=r"cannot read .*nothing: No such file"):
        settings("rediss://h", tls_ca=tmp_path / "nothing")


def test_certificate_and_key_come_together(tmp_path):
    (tmp_path / "cert").touch()
    with pytest.raises(ValidationError, match="are set together or not at all"):
        settings("rediss://h", tls_cert=tmp_path / "cert")
    with pytest.raises(ValidationError, match="are set together or not at all"):
        settings("rediss://h", tls_key=tmp_path / "cert")


def test_a_master_that_hangs_is_left_sooner_than_a_lone_server():
    assert settings("redis://h").timeout_s("redis://h") == 30.0
    assert settings("sentinel://h/m").timeout_s("sentinel://h/m") == 10.0
    assert settings("sentinel://h/m", socket_timeout_s=3).timeout_s("sentinel://h/m") == 3.0


async def test_readers_of_results_get_an_error_that_names_the_variable_and_no_password(monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", "redes://user:secret@redis:6379/0")
    with pytest.raises(ConfigurationError, match="HERMES_QUEUE_REDIS_URL: must start") as caught:
        await anext(consume("trainer"))
    assert "secret" not in "".join(traceback.format_exception(caught.value))
