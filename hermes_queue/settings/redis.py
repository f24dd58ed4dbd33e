"""The connection to Redis, and the memory of tasks in it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from hermes_queue.settings.section import PREFIX, Section

FORMS = (
    "redis://, rediss:// (TLS), unix://, or with Redis Sentinel "
    "sentinel://HOST:PORT,HOST:PORT/MASTER/DB and sentinel+tls://"
)
"""The URLs that we take, for messages."""
SENTINEL_PORT = 26379
SENTINEL_TIMEOUT_S = 10.0
SERVER_TIMEOUT_S = 30.0

CELERY_URLS = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL")
"""Variables in which Celery reads where its messages are; `celery -b` sets the first one."""

_SCHEMES = ("redis", "rediss", "unix", "sentinel", "sentinel+tls")
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?")
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_EXAMPLE = "as in sentinel://user:password@a:26379,b:26379,c:26379/mymaster/0"


@dataclass(frozen=True, slots=True)
class SentinelAddress:
    """A master by the name under which sentinels know it."""

    sentinels: tuple[tuple[str, int], ...]
    master: str
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    """Of Redis; those of the sentinels are settings of their own."""
    tls: bool = False
    options: tuple[tuple[str, str], ...] = ()
    """TLS files that the URL itself names, by redis-py's names."""

    @classmethod
    def parse(cls, url: str) -> Self | None:
        """The address in `url`; None if it is not a URL of Redis Sentinel.

        Raises:
            ValueError: it is a malformed one; the message says what to write.
        """
        scheme, _, rest = url.partition("://")
        if scheme not in ("sentinel", "sentinel+tls"):
            return None
        netloc, path, query = _split(rest)
        # Else messages would show a part of the password, as if it were a host.
        if "@" in path or ("@" in query and not query.startswith("ssl_")):
            raise ValueError("has a / or ? in user or password: write %2F for / and %3F for ?")
        secret, _, hosts = netloc.rpartition("@")
        username, _, password = secret.partition(":")
        master, _, db = path.strip("/").partition("/")
        if not master:
            raise ValueError(f"names no master; write it after the hosts, {_EXAMPLE}")
        if db and not (db.isascii() and db.isdigit()):
            raise ValueError(f"database {db!r} is not a number, {_EXAMPLE}")
        options = dict(parse_qsl(query, keep_blank_values=True))
        if unknown := sorted(options.keys() - set(_TLS_OPTIONS)):
            raise ValueError(f"does not take {', '.join(unknown)}; only {', '.join(_TLS_OPTIONS)}")
        if options and scheme != "sentinel+tls":
            raise ValueError(f"{', '.join(options)} needs sentinel+tls://")
        return cls(
            tuple(_node(part) for part in hosts.split(",")),
            unquote(master),
            int(db or 0),
            unquote(username),
            unquote(password),
            scheme == "sentinel+tls",
            tuple(sorted(options.items())),
        )


def _split(rest: str) -> tuple[str, str, str]:
    """Hosts with credentials, path and query of what follows the scheme."""
    before, _, query = rest.partition("?")
    netloc, _, path = before.partition("/")
    return netloc, path, query


def _node(text: str) -> tuple[str, int]:
    found = _HOST.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is not HOST:PORT of a sentinel; write sentinels with commas in between, "
            f"{_EXAMPLE}"
        )
    port = int(found["port"] or SENTINEL_PORT)
    if not 0 < port < 65536:
        raise ValueError("the port must be a number up to 65535")
    return found["host"].strip("[]"), port


def check_redis_url(url: SecretStr | None) -> SecretStr | None:
    """Return `url`. Raises ValueError if it cannot be one of Redis."""
    if url is not None:
        value = url.get_secret_value()
        if value.partition("://")[0] not in _SCHEMES:
            raise ValueError(f"must start with {FORMS}")
        if SentinelAddress.parse(value) is None:
            try:
                urlsplit(value).port  # noqa: B018 - parsed on access
            except ValueError as error:
                raise ValueError("the port must be a number up to 65535") from error
    return url


def broker_url(url: str) -> str:
    """Return `url` in Celery's spelling, which differs for sentinels, unix sockets and `?db=`."""
    if address := SentinelAddress.parse(url):
        secret = _secret(address.username, address.password)
        nodes = [
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for host, port in address.sentinels
        ]
        # kombu takes user and database from the first one.
        return ";".join(
            [
                f"sentinel://{secret}{nodes[0]}/{address.db}",
                *(f"sentinel://{node}" for node in nodes[1:]),
            ]
        )
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    if parts.scheme != "unix":
        if not (db := query.pop("db", "")):
            return url
        return parts._replace(path=f"/{db}", query=urlencode(query)).geturl()
    user = unquote(parts.username or "") or query.get("username", "")
    password = unquote(parts.password or "") or query.get("password", "")
    return (
        f"redis+socket://{_secret(user, password)}{parts.path}?virtual_host={query.get('db') or 0}"
    )


def _secret(user: str, password: str) -> str:
    return f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""


def _servers(url: str) -> list[tuple[Any, ...]]:
    """What two spellings of the same servers and database have in common, in Celery's form."""
    found = []
    for each in url.split(";"):
        parts = urlsplit(each)
        default = SENTINEL_PORT if parts.scheme == "sentinel" else 6379
        place = parts.path.strip("/") or "0"
        if parts.scheme == "redis+socket":
            place += "?" + dict(parse_qsl(parts.query)).get("virtual_host", "0")
        found.append((parts.scheme, parts.hostname, parts.port or default, place))
    return found


def celerys_url(ours: str | None) -> str | None:
    """`ours`, or what Celery's own variables and `celery -b` say if that is None.

    Celery takes its messages from where these say, and the ledger is where ours says.

    Raises:
        ValueError: they differ.
    """
    for name in CELERY_URLS:
        theirs = os.environ.get(name)
        if not theirs:
            continue
        if ours is None:
            ours = theirs
        elif theirs != ours and _servers(theirs) != _servers(broker_url(ours)):
            raise ValueError(
                f"{name} (or celery -b) names another broker than HERMES_QUEUE_REDIS_URL: unset "
                "one, or let both name the same Redis and database"
            )
    return ours


class RedisSettings(Section, env_prefix=PREFIX + "REDIS_"):
    """The Redis that holds queues, ledger and results."""

    url: SecretStr | None = None
    """redis://, rediss:// (TLS) or unix:// URL; with Redis Sentinel
    `sentinel://user:password@HOST:PORT,HOST:PORT/MASTER/DB`, or `sentinel+tls://`. Unset: that of
    Celery's own variable, `CELERY_BROKER_URL`; without one, producers run everything embedded."""

    @field_validator("url")
    @classmethod
    def _is_redis(cls, url: SecretStr | None) -> SecretStr | None:
        checked = check_redis_url(url)
        value = celerys_url(checked.get_secret_value() if checked else None)
        if checked or value is None:
            return checked
        try:
            return check_redis_url(SecretStr(value))
        except ValueError as error:
            raise ValueError(
                "is not set, and CELERY_BROKER_URL (or celery -b) cannot stand in for it: it "
                f"{error}"
            ) from error

    prefix: str = Field(default="hq:", pattern=r"^[A-Za-z0-9_.-]*:?$")
    """Prefix of all keys; with different prefixes, deployments may share one database."""
    socket_timeout_s: float | None = Field(default=None, gt=0)
    """Silence of Redis after which a command counts as failed. Unset: 30, with Sentinel 10, so that
    a master that hangs is left soon."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Longest wait for a connection to Redis or a sentinel."""
    tls_ca: Path | None = None
    """File of the certificates that vouch for Redis and the sentinels, with rediss:// and
    sentinel+tls://. Unset: those of the system."""
    tls_cert: Path | None = None
    """File of our own certificate, for servers that ask for one; with
    `HERMES_QUEUE_REDIS_TLS_KEY`."""
    tls_key: Path | None = Field(default=None, validate_default=True)
    """File of its key, without a passphrase."""
    tls_check_hostname: bool = True
    """Whether a server's certificate must name the host that we connect to."""
    sentinel_username: str = ""
    """User of the sentinels themselves, if they have users."""
    sentinel_password: SecretStr | None = None
    """Password of the sentinels themselves. Unset: they want none."""
    confirm_replicas: int = Field(default=0, ge=0, le=16)
    """Replicas that must have what a worker writes about a job (begun, finished, handed back)
    before it goes on and deletes its own copy; see docs/redis-high-availability.md. While fewer
    answer, workers wait. 0 = none."""
    confirm_timeout_s: float = Field(default=1.0, ge=0.01, le=5)
    """Longest wait for these replicas before the worker asks again."""

    @field_validator("tls_ca", "tls_cert", "tls_key")
    @classmethod
    def _can_be_read(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is None:
            return None
        try:
            path.open("rb").close()
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from error
        url = info.data.get("url")
        scheme = url.get_secret_value().partition("://")[0] if url else ""
        if scheme in ("redis", "sentinel"):
            raise ValueError(
                "HERMES_QUEUE_REDIS_URL speaks no TLS: let it begin with "
                f"{'rediss' if scheme == 'redis' else 'sentinel+tls'}://"
            )
        return path

    @field_validator("tls_key")
    @classmethod
    def _goes_with_the_certificate(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if (path is None) != (info.data.get("tls_cert") is None) and "tls_cert" in info.data:
            both = "HERMES_QUEUE_REDIS_TLS_CERT and HERMES_QUEUE_REDIS_TLS_KEY"
            raise ValueError(f"{both} are set together or not at all")
        return path

    def timeout_s(self, url: str) -> float:
        """`socket_timeout_s`, or what it is for `url` when it is not set."""
        unset = SENTINEL_TIMEOUT_S if url.startswith("sentinel") else SERVER_TIMEOUT_S
        return self.socket_timeout_s or unset

    def tls_options(self, url: str) -> dict[str, Any]:
        """redis-py's TLS options for `url`, but for those that it names itself; {} without TLS."""
        address = SentinelAddress.parse(url)
        if not (address.tls if address else url.startswith("rediss://")):
            return {}
        files = {
            "ssl_ca_certs": self.tls_ca,
            "ssl_certfile": self.tls_cert,
            "ssl_keyfile": self.tls_key,
        }
        named = dict(address.options if address else parse_qsl(urlsplit(url).query))
        ours: dict[str, Any] = {name: str(path) for name, path in files.items() if path}
        ours["ssl_check_hostname"] = self.tls_check_hostname
        ours = {name: value for name, value in ours.items() if name not in named}
        if address:
            ours |= named
            if "ssl_check_hostname" in named:
                ours["ssl_check_hostname"] = named["ssl_check_hostname"].lower() != "false"
        return ours


class TaskMemorySettings(Section, env_prefix=PREFIX + "TASKS_"):
    """What is remembered of tasks across runs."""

    enabled: bool = True
    """Whether this worker adds to it."""
    max_entries: int = Field(default=200_000, ge=1, le=10_000_000)
    """Tasks that are remembered; of more, those that ran least lately are forgotten. Redis needs
    about 0.9 kB for each."""
    kept_s: int = Field(default=90 * 86400, ge=60, le=1_000_000_000)
    """A task that nobody runs for this long is forgotten."""
