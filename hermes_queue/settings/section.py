"""What all sections have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "HERMES_QUEUE_"
"""Prefix of all environment variables that we read."""


class Section(BaseSettings):
    """A frozen section; its class names the prefix of its variables, as pydantic's settings do."""

    model_config = SettingsConfigDict(frozen=True)

    if TYPE_CHECKING:

        def __init_subclass__(cls, *, env_prefix: str, env_ignore_empty: bool = False) -> None: ...
