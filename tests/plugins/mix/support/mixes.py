"""Mixes of small files, and what they have enqueued."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from hermes_plugins.mix.blend import Blend, Group
from hermes_plugins.mix.document import MixDocument, read_mix
from hermes_plugins.mix.known import Measured
from hermes_plugins.mix.sources import MixSource, open_sources
from hermes_plugins.mix.state import MixState
from hermes_plugins.mix.tuning import LiveSettings
from hermes_queue.ledger import Ledger

IMPORTED = (
    "hermes_plugins.mix.run",
    "producers.gsm8k",
    "envs.gsm8k",
    "hermes_plugins.mix.command",
)


class NothingKnown:
    """A memory of tasks that knows no row."""

    def measured(
        self, env: str, item_sha256s: Sequence[str], *, model: str, policies: int | None
    ) -> list[Measured | None]:
        return [None] * len(item_sha256s)


def write_rows(path: Path, numbers, **fields) -> None:
    rows = ({"instance_id": f"r{n}", "question": f"{n}?", "answer": f"#### {n}"} for n in numbers)
    path.write_text("".join(json.dumps(row | fields) + "\n" for row in rows))


def write_mix(directory: Path, sources: dict[str, str], *, head: str = "", rows: int = 10) -> Path:
    """A mix of sources of `rows` rows each; `sources` says what more their tables hold."""
    text = head if "name =" in head else f'name = "m"\n{head}'
    text += '\n[flags]\nagent = "nop"\n'
    for name, table in sources.items():
        path = directory / f"{name}.jsonl"
        if not path.exists():
            write_rows(path, range(rows))
        text += f'\n[sources.{name}]\nproducer = "gsm8k"\n{table}\n'
        text += f'[sources.{name}.flags]\ndataset = "{path}"\n' if "flags" not in table else ""
    file = directory / "mix.toml"
    file.write_text(text)
    return file


class Drawing:
    """A mix without Redis."""

    def __init__(self, file: Path, state: MixState | None = None, rates=None) -> None:
        self.document: MixDocument = read_mix(file)
        self._stack = ExitStack()
        self.sources: dict[str, MixSource] = {}
        for source in open_sources(self.document):
            self._stack.callback(source.close)
            self.sources[source.name] = source
        self.settings: LiveSettings = self.document.settings()
        self.now = 0.0
        self.blend = Blend(
            self.sources,
            state or MixState(),
            seed=self.document.seed,
            share=self.document.share,
            rates=rates or NothingKnown(),
            clock=lambda: self.now,
        )
        self.blend.heed(self.settings)

    def close(self) -> None:
        self._stack.close()

    def set(self, **changes: str) -> None:
        """Names with two underscores in place of the dot."""
        named = {name.replace("__", "."): value for name, value in changes.items()}
        settings, refused = self.settings.changed_by(named)
        assert refused == {}
        self.settings = settings
        self.blend.heed(settings)

    def draw(self, most: int) -> list[Group]:
        found: list[Group] = []
        while len(found) < most and (group := self.blend.draw()):
            found.append(group)
        return found

    def names(self, most: int) -> list[str]:
        """Sources of the next groups."""
        return [group.drawn[0] for group in self.draw(most)]

    def rows(self, most: int) -> list[str]:
        """Rows of the next groups, as SOURCE/ROW."""
        return [f"{g.drawn[0]}/{g.jobs[0].instance_id}" for g in self.draw(most)]

    def saved(self) -> MixState:
        """The state as a later start reads it."""
        return MixState.model_validate_json(self.blend.state.model_dump_json())


class Rates:
    """Pass rates by row id."""

    def __init__(self, rates: dict[str, tuple[int, int]], drawing=None) -> None:
        self.rates = rates
        self.asked: list[int] = []
        self.by_hash: dict[str, tuple[int, int]] = {}

    def learn(self, drawing: Drawing) -> None:
        """Know the rows of all sources by their hashes."""
        for source in drawing.sources.values():
            for place in range(len(source.items)):
                stored = source.items.stored(place)
                if stored.selected.instance_id in self.rates:
                    self.by_hash[stored.sha256] = self.rates[stored.selected.instance_id]

    def measured(self, env, item_sha256s, *, model, policies):
        self.asked.append(len(item_sha256s))
        found = (self.by_hash.get(each) for each in item_sha256s)
        return [Measured(*each) if each else None for each in found]


def jobs_in(ledger: Ledger, run_id: str = "m") -> list[str]:
    """Every job that the run has accepted, by its id without the run, sorted."""
    return sorted(c.decode() for c in ledger.client.smembers(ledger.key(f"run:{run_id}:claimed")))


def rows_in(ledger: Ledger, run_id: str = "m") -> list[str]:
    """Row of every job that waits, with the id of its group, sorted."""
    found = []
    for key in ledger.client.scan_iter(ledger.key(f"traj:{run_id}.*")):
        job = json.loads(ledger.client.hget(key, "job"))
        found.append(f"{key.decode()} {job['instance_id']}")
    return sorted(found)


def waiting_in(ledger: Ledger) -> list[str]:
    """Jobs whose message is in the broker or, where a producer died, still to be sent, sorted."""
    names = (ledger.key("waiting"), ledger.key("delayed"))
    return sorted({each.decode() for name in names for each in ledger.client.zrange(name, 0, -1)})


def state_in(ledger: Ledger, name: str = "m") -> MixState:
    """What the mix has written down."""
    text = ledger.client.hget(ledger.key(f"mix:{name}"), "state")
    return MixState.model_validate_json(text or b"{}")
