"""Settings of a mix that change while it is served, and outlive its producer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger.ledger import RUN_TTL_S, Ledger

SOURCE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
BACKLOG_MAX = 10_000_000
WEIGHT_MIN, WEIGHT_MAX = 1e-6, 1e6
"""A weight of 0 is possible, too."""
_OF_SOURCE = ("weight", "items", "trajectories", "pause")
_OF_MIX = ("low", "high", "pause")


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What of a source can change while it is served."""

    weight: float = 1.0
    items: int | None = None
    """Quota; None = none."""
    trajectories: int | None = None
    pause: bool = False


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """What of a mix can change while it is served."""

    low: int
    high: int
    sources: Mapping[str, SourceSettings] = field(default_factory=dict)
    pause: bool = False

    def changed_by(self, changes: Mapping[str, str]) -> tuple[LiveSettings, dict[str, str]]:
        """The settings after these changes, and why some of them were ignored, by their names.

        Redis may hold anybody's: what is wrong changes nothing.
        """
        settings, refused = self, {}
        for name, value in sorted(changes.items()):
            try:
                settings = settings._with(name, value)
            except ConfigurationError as error:
                refused[name] = str(error)
        if settings.low >= settings.high:
            why = f"low={settings.low} is not below high={settings.high}: both ignored"
            refused |= {name: why for name in ("low", "high") if name in changes}
            settings = replace(settings, low=self.low, high=self.high)
        return settings, refused

    def _with(self, name: str, value: str) -> LiveSettings:
        source, dot, setting = name.rpartition(".")
        parsed: Any = parse_setting(name, value, self.sources)
        if not dot:
            return replace(self, **{setting: parsed})
        changed = replace(self.sources[source], **{setting: parsed})
        return replace(self, sources={**self.sources, source: changed})


def parse_setting(name: str, value: str, sources: Iterable[str]) -> bool | int | float:
    """The value of a setting such as `low` or `maths.weight`.

    Raises:
        ConfigurationError: there is no such setting, or it does not take this value.
    """
    source, dot, setting = name.rpartition(".")
    known, of = (_OF_SOURCE, f"of source {source!r}") if dot else (_OF_MIX, "of the mix")
    if dot and source not in sources:
        raise ConfigurationError(
            f"{_short(name)}: there is no source {_short(source)!r}; there are {', '.join(sources)}"
        )
    if setting not in known:
        raise ConfigurationError(
            f"{_short(name)}: is no setting {of}; there are {', '.join(known)}"
            + ("" if dot else ", and SOURCE." + ", SOURCE.".join(_OF_SOURCE))
        )
    if setting == "pause":
        if value not in ("true", "false"):
            raise ConfigurationError(f"{name}={_short(value)}: use true or false")
        return value == "true"
    if setting == "weight":
        return _weight(name, value)
    if not value.isascii() or not value.isdecimal() or len(value) > 15:
        raise ConfigurationError(f"{name}={_short(value)}: is no whole number")
    number = int(value)
    if setting in ("low", "high") and number > BACKLOG_MAX:
        raise ConfigurationError(f"{name}={number}: at most {BACKLOG_MAX}")
    return number


def _weight(name: str, value: str) -> float:
    try:
        weight = float(value)
    except ValueError:
        weight = math.nan
    if weight and not WEIGHT_MIN <= weight <= WEIGHT_MAX:
        raise ConfigurationError(
            f"{name}={_short(value)}: use 0 (nothing of it), or {WEIGHT_MIN:g} to {WEIGHT_MAX:g}"
        )
    return weight


def _short(text: str) -> str:
    return ascii(text[:60])[1:-1]


def tune(ledger: Ledger, name: str, changes: Mapping[str, str], sources: Iterable[str]) -> None:
    """Change settings of a mix; its producer heeds them within about a second.

    A value of "" = what the file says.

    Raises:
        ConfigurationError: there is no such mix or setting, or a value is wrong; nothing changes.
    """
    names = list(sources)
    for setting, value in changes.items():
        if value == "":
            parse_setting(setting, "true" if setting.endswith("pause") else "1", names)
        else:
            parse_setting(setting, value, names)
    answer = ledger.call(
        "hermes_plugins.mix:set", name=name, ttl_s=RUN_TTL_S, changes=list(changes.items())
    )
    if not answer:
        raise unknown_mix(name)


def check_marks(
    changes: Mapping[str, str], live: Mapping[str, str], file: Mapping[str, int]
) -> None:
    """Refuse changes after which the backlog would have no room between its marks.

    `live` is what was set before, `file` what counts where nothing is set.

    Raises:
        ConfigurationError: a producer would ignore both marks.
    """
    if "low" not in changes and "high" not in changes:
        return
    set_then = {**live, **changes}
    low, high = (set_then.get(name) or str(file.get(name, "")) for name in ("low", "high"))
    if low.isdecimal() and high.isdecimal() and int(low) >= int(high):
        raise ConfigurationError(f"low={low} must be below high={high}; set both")


def unknown_mix(name: str) -> ConfigurationError:
    """The error for a mix that this Redis does not know."""
    return ConfigurationError(f"mix {name!r} is unknown in this Redis; see hermes-queue mix show")
