"""`--environments FILE`: requirements of each repository's tests, once for all of its rows.

The file maps the `repo` of rows to an `environment`, as JSON, TOML or YAML:

    {"owner/name": {"requirements": ["pytest==8.4.2"], "python": "3.11"},
     "owner/name@7.1": {"requirements": ["pytest==7.4.4"], "python": "3.9"}}

The name after `@` is the `version` of rows; where both fit, that entry alone counts.
`python -m producers.make_environment` writes such files. The row's own `environment` takes
precedence, key by key.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from hermes_queue.errors import ConfigurationError, InputError

_NO_YAML = "reading YAML needs PyYAML: pip install 'hermes-queue[profiles]', or use JSON or TOML"


def with_environment(row: dict[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """The row, with `table`'s environment of its repository and version as defaults for its own.

    A malformed `environment` is left to the validation of rows, which reports row and field.
    """
    own = own_environment(row)
    repo = str(row.get("repo"))
    shared = table.get(f"{repo}@{row.get('version')}", table.get(repo))
    if own is None or not shared:
        return row
    return {**row, "environment": {**shared, **own}}


def own_environment(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row's `environment` as a mapping without nulls; None if it is malformed."""
    value = row.get("environment")
    try:
        value = json.loads(value or "{}") if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None
    value = {} if value is None else value
    if not isinstance(value, Mapping):
        return None
    return {key: setting for key, setting in value.items() if setting is not None}


@lru_cache(maxsize=4)
def read_environments(path: Path) -> Mapping[str, Any]:
    """The table of a file, validated.

    Raises:
        InputError: the file cannot be read, or an entry is not an `environment`.
        ConfigurationError: its format needs an extra that is not installed.
    """
    from pydantic import ValidationError

    from envs.swe.item import SuiteRuntime

    try:
        data = _parse(path)
    except OSError as error:
        raise InputError(f"--environments: {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"--environments: {path} is not valid {path.suffix}: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"--environments: {path} must hold an object: repo -> environment")
    for repo, entry in data.items():
        try:
            SuiteRuntime.model_validate(entry)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, (repo, *first["loc"])))
            raise InputError(f"--environments: {path}: {where}: {first['msg']}") from error
    return data


def _parse(path: Path) -> Any:
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".toml":
        return tomllib.loads(text)
    if path.suffix not in (".yaml", ".yml"):
        return json.loads(text)
    try:
        import yaml
    except ImportError as error:
        raise ConfigurationError(f"--environments: {path}: {_NO_YAML}") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
