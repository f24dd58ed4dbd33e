"""Redis: bodies by their name, groups of the results stream, and what has no record yet."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from hermes_plugins.view.lookup.archive import unpacked
from hermes_plugins.view.lookup.base import LookedUp, Raw, by_sample
from hermes_plugins.view.lookup.unfinished import letters_of, unfinished
from hermes_plugins.view.records.raw import UnreadableRecord, decode_raw
from hermes_plugins.view.sources.entries import decoded_fields, members_of
from hermes_queue.bodies.store import resolve
from hermes_queue.errors import SchemaTooNew
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger import Ledger
from hermes_queue.results.reader import STREAM
from hermes_queue.wire.ids import run_of

_PAGE = 100
_LIVES_MOST = 100
"""Lives of a purged run that are looked for."""
_SAMPLES_MOST = 1024


class DeploymentPlace:
    """The deployment that the settings name; only read from."""

    def __init__(self, url: str) -> None:
        self._title = f"Redis {url} (bodies, stream, ledger, dead letters)"

    @property
    def title(self) -> str:
        """See `LookupPlace`."""
        return self._title

    def trajectory(self, name: str) -> LookedUp | None:
        """See `LookupPlace`; of several lives of a purged run, the newest with a body."""
        with closing(Ledger.connect()) as ledger, explained(ledger.url):
            names = _names(ledger, name)
            raw, notes = _first(ledger, names)
            if raw is None:
                return unfinished(ledger, name, notes)
            if raw.get("status") == "failed":
                notes += letters_of(ledger, name)
            return LookedUp([raw], False, self._title.partition(" (")[0], notes)

    def group(self, name: str) -> LookedUp | None:
        """See `LookupPlace`; of a group that is still open, the samples that have ended."""
        with closing(Ledger.connect()) as ledger, explained(ledger.url):
            where = self._title.partition(" (")[0]
            fields = _entry(ledger, name)
            if fields is None:
                return _open_group(ledger, name, where)
            notes: list[str] = []
            client: Any = ledger.client
            names = list(dict.fromkeys(each.name for each in members_of(fields)))
            keys = [ledger.key(f"body:{member}") for member in names]
            stored = dict(zip(names, client.mget(keys) if keys else [], strict=True))
            bodies, _ = resolve(stored)
            return LookedUp(unpacked(fields, dict(bodies), notes), True, where, notes)


def _names(ledger: Ledger, name: str) -> list[str]:
    """Names that the body may have, the newest life first."""
    client: Any = ledger.client
    purges = client.get(ledger.key(f"purged:{run_of(name)}"))
    count = int(purges) if purges and purges.isdigit() else 0
    lives = range(count, max(0, count - _LIVES_MOST), -1)
    return [*(f"{name}~{life}" for life in lives), name]


def _first(ledger: Ledger, names: list[str]) -> tuple[Raw | None, list[str]]:
    notes: list[str] = []
    client: Any = ledger.client
    for each in names:
        stored = client.get(ledger.key(f"body:{each}"))
        if stored is None:
            continue
        try:
            bodies, lost = resolve({each: stored})
            if each in bodies:
                return decode_raw(bodies[each]), notes
            notes += lost.values()
        except (UnreadableRecord, SchemaTooNew) as error:
            notes.append(f"{each}: {error}")
    return None, notes


def _entry(ledger: Ledger, name: str) -> dict[str, str] | None:
    """The fields of the group's entry in the stream, from the newest one back."""
    client: Any = ledger.client
    end = "+"
    while entries := client.xrevrange(ledger.key(STREAM), max=end, count=_PAGE):
        for _, raw in entries:
            if raw.get(b"group_id") == name.encode(errors="replace"):
                return decoded_fields(raw)
        end = f"({entries[-1][0].decode()}"
    return None


def _open_group(ledger: Ledger, name: str, where: str) -> LookedUp | None:
    """The samples of a group that is not published, as far as they have ended."""
    client: Any = ledger.client
    facts = decoded_fields(client.hgetall(ledger.key(f"group:{name}")))
    if not facts:
        return None
    ended = [field for field in facts if field[:2] in ("m:", "x:", "z:")][:_SAMPLES_MOST]
    records: list[Raw] = []
    notes = [f"the group is open: {len(ended)} of {facts.get('size', '?')} samples have ended"]
    if facts.get("closed"):
        notes = ["the group is closed, and its entry is not in the stream"]
    for field in ended:
        raw, _ = _first(ledger, _names(ledger, f"{name}.{field[2:]}"))
        if raw is not None:
            records.append(raw)
    return LookedUp(by_sample(records), True, where, notes, "open")
