"""What `hermes-queue view` reads besides its flags."""

from __future__ import annotations

from pydantic import SecretStr, field_validator

from hermes_queue.settings.redis import check_redis_url
from hermes_queue.settings.section import PREFIX, Section


class ViewSettings(Section, env_prefix=PREFIX + "VIEW_", env_ignore_empty=True):
    """The pages of `hermes-queue view` (docs/plugins/view.md)."""

    token: SecretStr | None = None
    """Token that opens the pages. Unset: one is made and kept below the cache directory. It must be
    set for other addresses than those of this machine."""
    operator_token: SecretStr | None = None
    """Token that also opens the actions of `--actions`. Unset: as above."""
    operator_redis_url: SecretStr | None = None
    """Redis under a user that may write, with `--actions`: for these, and for asking workers what
    runs. Everything else goes through `HERMES_QUEUE_REDIS_URL`, whose user then need not write.
    Unset: that one."""

    @field_validator("operator_redis_url")
    @classmethod
    def _is_redis(cls, url: SecretStr | None) -> SecretStr | None:
        return check_redis_url(url)
