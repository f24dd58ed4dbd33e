"""What all sections have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from hermes_queue.errors import ConfigurationError

PREFIX = "HERMES_QUEUE_"
"""Prefix of all environment variables that we read."""


def wrong_setting(section: type[BaseSettings], error: ValidationError) -> ConfigurationError:
    """Says which variable of a section is wrong, and why, without its value: it may be a secret."""
    first = error.errors(include_url=False, include_input=False)[0]
    prefix = str(section.model_config.get("env_prefix", ""))
    name = prefix + "_".join(str(part) for part in first["loc"]).upper()
    problem = first["msg"].removeprefix("Value error, ")
    return ConfigurationError(f"{name}: {problem}; see docs/configuration.md")


class Section(BaseSettings):
    """A frozen section; its class names the prefix of its variables, as pydantic's settings do."""

    model_config = SettingsConfigDict(frozen=True)

    @classmethod
    def read(cls) -> Self:
        """The section as the environment has it.

        Raises:
            ConfigurationError: names the variable and the problem with its value.
        """
        try:
            return cls()
        except ValidationError as error:
            raise wrong_setting(cls, error) from None

    if TYPE_CHECKING:

        def __init_subclass__(cls, *, env_prefix: str, env_ignore_empty: bool = False) -> None: ...
