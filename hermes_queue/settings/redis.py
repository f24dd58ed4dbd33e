"""The connection to Redis, and the memory of tasks in it."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from hermes_queue.settings.section import PREFIX, Section


def check_redis_url(url: SecretStr | None) -> SecretStr | None:
    """Return `url`. Raises ValueError if it cannot be one of Redis."""
    if url is not None:
        parts = urlsplit(url.get_secret_value())
        if parts.scheme not in ("redis", "rediss", "unix"):
            raise ValueError("must start with redis://, rediss:// or unix://")
        try:
            parts.port  # noqa: B018 - parsed on access
        except ValueError as error:
            raise ValueError("the port must be a number up to 65535") from error
    return url


class RedisSettings(Section, env_prefix=PREFIX + "REDIS_"):
    """The Redis that holds queues, ledger and results."""

    url: SecretStr | None = None
    """redis://, rediss:// or unix:// URL. Unset: producers run everything embedded."""

    @field_validator("url")
    @classmethod
    def _is_redis(cls, url: SecretStr | None) -> SecretStr | None:
        return check_redis_url(url)

    prefix: str = Field(default="hq:", pattern=r"^[A-Za-z0-9_.-]*:?$")
    """Prefix of all keys; with different prefixes, deployments may share one database."""
    socket_timeout_s: float = Field(default=30.0, gt=0)
    connect_timeout_s: float = Field(default=5.0, gt=0)


class TaskMemorySettings(Section, env_prefix=PREFIX + "TASKS_"):
    """What is remembered of tasks across runs."""

    enabled: bool = True
    """Whether this worker adds to it."""
    max_entries: int = Field(default=200_000, ge=1, le=10_000_000)
    """Tasks that are remembered; of more, those that ran least lately are forgotten. Redis needs
    about 0.9 kB for each."""
    kept_s: int = Field(default=90 * 86400, ge=60, le=1_000_000_000)
    """A task that nobody runs for this long is forgotten."""
