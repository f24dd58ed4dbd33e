"""The lock of a run, and how two of them differ."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envs.base import Environment
from hermes_queue.errors import ConfigurationError, InputError
from hermes_queue.ledger.run_lock import LOCK_BYTES_MAX
from producers.lock.flags import flags_of, has_secret
from producers.lock.options import LockOptions
from producers.run.plan import Plan
from producers.run.selection import SelectedItems
from producers.source import Producer


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LockedRows(_Part):
    """The rows that a run uses."""

    dataset: str
    count: int = Field(ge=0)
    sha256: str
    """Over the keys and contents of all, in whatever order they are sent."""


class LockFile(_Part):
    """What a run is made from. No secrets."""

    lock: Literal[1] = 1
    """Version of this format."""
    run_id: str
    producer: str
    flags: list[str]
    """Those that differ from their defaults."""
    masked: list[str] = []
    """Flags that are left out for their secrets."""
    rows: LockedRows
    env: str
    env_version: str
    seed: int
    base_url: list[str] = []
    """Endpoints without secrets; empty = those of the workers."""
    policy_version: str | None = None
    files: dict[str, str] = {}
    """SHA-256 of what flags name by a file: the judge, the program."""
    versions: dict[str, str] = {}

    def text(self) -> str:
        """As it is written."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"


def lock_of(
    producer: Producer, env: Environment[Any], plan: Plan, selection: SelectedItems
) -> LockFile:
    """The lock of a run."""
    options = plan.options
    flags, masked = flags_of(producer, options)
    files = {}
    if plan.judge:
        files["judge"] = hashlib.sha256(plan.judge.model_dump_json().encode()).hexdigest()
    if plan.program:
        definition = json.dumps(plan.program.definition.compact(), sort_keys=True)
        files["program"] = hashlib.sha256(definition.encode()).hexdigest()
    versions = {
        "hermes-queue": plan.provenance.version,
        "git": plan.provenance.git or "",
        "python": ".".join(platform.python_version_tuple()[:2]),
    }
    return LockFile(
        run_id=plan.run_id,
        producer=producer.name,
        flags=flags,
        masked=masked,
        rows=_rows(selection),
        env=options.run.env,
        env_version=str(env.version),
        seed=options.rows.seed,
        base_url=[each for each in options.agent.base_url if not has_secret(each)],
        policy_version=options.run.policy_version,
        files=files,
        versions={name: version for name, version in versions.items() if version},
    )


def _rows(selection: SelectedItems) -> LockedRows:
    rows = sorted(f"{item.key}\0{item.item_sha256}\n" for item in selection.items)
    digest = hashlib.sha256("".join(rows).encode())
    name = selection.dataset
    return LockedRows(
        dataset="***" if has_secret(name) else name,
        count=len(selection.items),
        sha256=digest.hexdigest(),
    )


def check_lock(options: LockOptions, now: LockFile) -> list[str]:
    """Compare a run with the lock that it is made from, and write its own if one is wanted.

    Returns:
        What differs, for people; empty unless that is allowed.

    Raises:
        ConfigurationError: it differs from the lock; says in what.
        InputError: the lock cannot be read, or the other one cannot be written.
    """
    found: list[str] = []
    if options.from_lock:
        found = list(differences(read_lock(options.from_lock), now))
        if found and not options.allow_differences:
            raise ConfigurationError(
                f"--from-lock {options.from_lock}: this run would be another one: "
                f"{'; '.join(found)}. Restore these, or go on with --allow-differences"
            )
    if options.lock:
        try:
            options.lock.write_text(now.text(), encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"--lock {options.lock}: cannot be written: {error.strerror or error}"
            ) from error
    return found


def differences(locked: LockFile, now: LockFile) -> Iterator[str]:
    """What differs but for flags, which the command line may change."""
    if locked.rows != now.rows:
        old, new = locked.rows, now.rows
        yield (
            f"rows: {new.count} of {new.dataset}, {new.sha256[:12]} (locked: {old.count} of "
            f"{old.dataset}, {old.sha256[:12]})"
        )
    pairs = {
        "env": (locked.env, now.env),
        "version of the env": (locked.env_version, now.env_version),
        **_pairs("", locked.files, now.files),
        **_pairs("version of ", locked.versions, now.versions),
    }
    for what, (old_value, new_value) in pairs.items():
        if old_value != new_value:
            yield f"{what}: {new_value[:12] or 'none'} (locked: {old_value[:12] or 'none'})"


def _pairs(what: str, locked: dict[str, str], now: dict[str, str]) -> dict[str, tuple[str, str]]:
    return {f"{what}{n}": (locked.get(n, ""), now.get(n, "")) for n in sorted({*locked, *now})}


def read_lock(path: Path) -> LockFile:
    """The lock in a file.

    Raises:
        InputError: it cannot be read, or holds no lock; names the field.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LOCK_BYTES_MAX + 1)
        if len(data) > LOCK_BYTES_MAX:
            raise InputError(f"{path}: has more than {LOCK_BYTES_MAX:,} bytes; is it a lock?")
        return LockFile.model_validate_json(data)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: is no lock: {field or 'the file'}: {first['msg']}") from error
