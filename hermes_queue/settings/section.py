"""What all sections have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from hermes_queue.errors import ConfigurationError

PREFIX = "HERMES_QUEUE_"
"""Prefix of all environment variables that we read."""
SECONDS_LEAST, SECONDS_MOST = 0.001, 1_000_000_000
"""Times outside, but for 0, are mistakes that no clock tells, or that Redis cannot read."""


def wrong_setting(section: type[BaseSettings], error: ValidationError) -> ConfigurationError:
    """Says which variable of a section is wrong, and why, without its value: it may be a secret."""
    first = error.errors(include_url=False, include_input=False)[0]
    prefix = str(section.model_config.get("env_prefix", ""))
    name = prefix + "_".join(str(part) for part in first["loc"]).upper()
    problem = first["msg"].removeprefix("Value error, ")
    return ConfigurationError(f"{name}: {problem}; see docs/configuration.md")


class Section(BaseSettings):
    """A frozen section; its class names the prefix of its variables, as pydantic's settings do."""

    model_config = SettingsConfigDict(frozen=True, allow_inf_nan=False)
    ordered: ClassVar[tuple[tuple[str, float, str], ...]] = ()
    """Pairs of fields that only work together if the first one, times the number, is not greater
    than the second one."""

    @field_validator("*")
    @classmethod
    def _works(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        is_time = name.endswith("_s") and not name.endswith("_per_s")
        if is_time and value and not SECONDS_LEAST <= value <= SECONDS_MOST:
            raise ValueError(f"must be {SECONDS_LEAST:g} to {SECONDS_MOST:,} seconds")
        known = {**info.data, name: value}
        for smaller, times, larger in cls.ordered:
            low, high = known.get(smaller), known.get(larger)
            if name in (smaller, larger) and low and high and low * times > high:
                raise ValueError(
                    f"{cls._variable(larger)}, {high:g}, must be at least "
                    f"{f'{times:g} times ' if times > 1 else ''}{cls._variable(smaller)}, {low:g}"
                )
        return value

    @classmethod
    def _variable(cls, field: str) -> str:
        return f"{cls.model_config.get('env_prefix')}{field}".upper()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Leave out the sources that we do not read: each costs a third of building a section."""
        return init_settings, env_settings

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
