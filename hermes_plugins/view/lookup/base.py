"""Where a trajectory may be, and how several places are searched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hermes_plugins.view.sources.places import no_source
from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.keyspace.connection import masked, redis_url
from hermes_queue.settings import ArchiveSettings, RedisSettings
from hermes_queue.terminal.escapes import label

Raw = dict[str, Any]


class NotFound(ConfigurationError):
    """No place has the id; the message says where was looked, and what was wrong there."""


@dataclass(frozen=True, slots=True)
class LookedUp:
    """What was found under an id."""

    records: Sequence[Raw]
    """One trajectory, or all of a group that are there, by sample."""
    is_group: bool
    where: str
    """The place, for people."""
    notes: Sequence[str] = ()
    """What is known beside the records: what is missing, or damaged."""
    state: str = ""
    """Of a trajectory without a record: what the ledger says of it; "" = it has a record."""


class LookupPlace(Protocol):
    """Something that is searched."""

    @property
    def title(self) -> str:
        """What it is and how much it has, for people; without credentials."""

    def trajectory(self, name: str) -> LookedUp | None:
        """The trajectory with this id.

        Raises:
            HermesQueueError: the place cannot be read.
        """

    def group(self, name: str) -> LookedUp | None:
        """The group with this id; raises as `trajectory`."""


def open_places(paths: Sequence[Path] = ()) -> list[LookupPlace]:
    """The places that a command line names: archive directories and files of JSON lines.

    Without any: Redis, and the archive of this deployment. Redis is opened when it is searched.

    Raises:
        ConfigurationError: a path is neither.
    """
    from hermes_plugins.view.lookup.archive import ArchivePlace
    from hermes_plugins.view.lookup.deployment import DeploymentPlace
    from hermes_plugins.view.lookup.files import FilePlace

    if not paths:
        url = masked(redis_url(RedisSettings()))
        return [DeploymentPlace(url), ArchivePlace(ArchiveSettings().directory)]
    places: list[LookupPlace] = []
    for path in paths:
        if path.is_dir():
            places.append(ArchivePlace(path))
        elif path.is_file():
            places.append(FilePlace(path))
        else:
            raise ConfigurationError(no_source(path))
    return places


def find(name: str, places: Sequence[LookupPlace]) -> LookedUp:
    """The trajectory with this id, or else the group, from the first place that has it.

    A record is preferred to what the ledger knows of a trajectory that has none.

    Raises:
        NotFound: no place has it.
        HermesQueueError: the only place cannot be read.
    """
    problems: list[str] = []
    unfinished: LookedUp | None = None
    for place in places:
        try:
            found = place.trajectory(name) or place.group(name)
        except HermesQueueError as error:
            if len(places) == 1:
                raise
            problems.append(str(error))
            continue
        if found is not None and not found.state:
            return found
        unfinished = unfinished or found
    if unfinished is not None:
        return unfinished
    looked = "; ".join(place.title for place in places)
    raise NotFound(
        f"there is no trajectory and no group {label(name)!r}. Looked in {looked}"
        + "".join(f". {problem}" for problem in problems)
    )


def by_sample(records: Sequence[Raw]) -> list[Raw]:
    """Records in the order of their samples, those without a number last."""

    def sample(raw: Raw) -> tuple[bool, int]:
        index = raw.get("sample_index")
        return not isinstance(index, int), index if isinstance(index, int) else 0

    return sorted(records, key=sample)
