"""Descriptions of sandboxes: the default profile from the environment, others from YAML."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hermes_queue.errors import ConfigurationError, SandboxRejected
from hermes_queue.sandbox.profiles import DEFAULT_PROFILE
from hermes_queue.settings import ModalSettings

FLEET_WIDE = frozenset(
    {"app", "environment", "profiles", "creates_per_s", "max_starting", "patience_s"}
)
"""Settings of the whole worker, which profiles cannot set."""


class Profiles:
    """Every profile by name; a job names the one it needs."""

    def __init__(self, default: ModalSettings) -> None:
        """Read the profiles' file, if the settings name one. Raises ConfigurationError."""
        self._by_name = {DEFAULT_PROFILE: default}
        if default.profiles is not None:
            for name, section in _read(default.profiles).items():
                self._by_name[name] = _profile(default, default.profiles, name, section)

    def __getitem__(self, name: str) -> ModalSettings:
        """The profile called `name`. Raises SandboxRejected, which lists the known ones."""
        if name not in self._by_name:
            raise SandboxRejected(
                f"sandbox profile {name!r} is unknown to this worker; known: "
                f"{', '.join(sorted(self._by_name))} (HERMES_QUEUE_MODAL_PROFILES)"
            )
        return self._by_name[name]


def for_grading(profile: ModalSettings) -> ModalSettings | None:
    """The profile for grading a job of this one; None = the same sandbox.

    Modal cannot remove a sandbox's network, so grading needs another one.
    """
    if profile.network == "blocked" or profile.grading_network == "same":
        return None
    closed = {"network": "blocked", "allow_domains": (), "allow_cidrs": (), "min_sandboxes": 0}
    return profile.model_copy(update=closed)


def for_one(profile: ModalSettings) -> ModalSettings:
    """The profile for a job that must not share its sandbox."""
    memory_mb = profile.memory_most_mb
    alone = {"slots_per_sandbox": 1, "min_sandboxes": 0, "memory_limit_mb": memory_mb}
    return profile.model_copy(update=alone)


def image_key(profile: ModalSettings) -> str:
    """A digest of the recipe of the profile's image."""
    dockerfile = profile.dockerfile.read_text("utf-8") if profile.dockerfile else ""
    recipe = "\0".join((profile.image, dockerfile, *profile.build_commands))
    return hashlib.sha256(recipe.encode()).hexdigest()[:16]


def image_name(profile: ModalSettings) -> str:
    """The image for people; with a digest of its recipe if the name is not enough."""
    name = "Dockerfile" if profile.dockerfile else profile.image
    if not profile.dockerfile and not profile.build_commands:
        return name
    try:
        return f"{name}, made by recipe {image_key(profile)}"
    except (OSError, UnicodeDecodeError):  # its build reports the error
        return name


def _read(path: Path) -> dict[str, Mapping[str, Any]]:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "profiles in YAML need PyYAML: pip install 'hermes-queue[profiles]'"
        ) from error
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"HERMES_QUEUE_MODAL_PROFILES: {path}: {error}") from error
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"{path}: must map profile names to settings")
    for name, section in content.items():
        if not isinstance(name, str) or not isinstance(section, Mapping):
            raise ConfigurationError(f"{path}: profile {name!r} must be a mapping of settings")
    return dict(content)


def _profile(
    default: ModalSettings, path: Path, name: str, section: Mapping[str, Any]
) -> ModalSettings:
    known = sorted(set(ModalSettings.model_fields) - FLEET_WIDE)
    for key in section:
        if key in FLEET_WIDE:
            raise ConfigurationError(
                f"{path}: {name}.{key} is set for the whole worker: HERMES_QUEUE_MODAL_"
                f"{str(key).upper()}"
            )
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise ConfigurationError(f"{path}: {name}.{key} is not a setting; {hint}")
    values = {**default.model_dump(), **section}
    if values["dockerfile"] is not None:  # relative to the file's directory
        values["dockerfile"] = path.parent / Path(values["dockerfile"])
    try:
        return ModalSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([name, *map(str, first["loc"])])
        raise ConfigurationError(f"{path}: {where}: {first['msg']}") from error
