"""A Hugging Face dataset folder: Parquet shards below `data/` and a card in `README.md`.

`datasets.load_dataset(folder)` opens it, and it can be uploaded as it is; with `repo`, each shard
is committed to the hub once it is finished. The card describes the rows in the shards; it is
rewritten with each shard and when the folder is closed.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from hermes_plugins.datasets.hub import HubRepository, HubUnavailable
from hermes_queue.disk import locked as files
from hermes_queue.errors import ConfigurationError, InputError
from hermes_queue.models import ScoredTrajectory
from hermes_queue.sinks.base import Closing, Format, RowChoice
from hermes_queue.sinks.datasets.parquet import ParquetSink, ShardOptions

logger = logging.getLogger(__name__)

_COLUMNS = ("run_id", "env", "instance_id", "agent_kind", "model", "policy_version", "status")
_MORE = ("stop_reason", "score", "provenance", "completion_tokens")
_MARK = "<!-- hermes-queue data card -->"
_FILLS = ".fills.json"
"""File with the filters of every run that added rows to the folder: the card lists all of them."""


class CardOptions(ShardOptions):
    """Contents of the data card beyond the statistics, and limits of shards."""

    name: str = Field(default="Trajectories", description="The dataset's name on its card.")
    licence: str | None = Field(
        default=None,
        description="The dataset's licence: the hub's identifier, such as mit or cc-by-4.0.",
    )
    licence_notes: Path | None = Field(
        default=None,
        description="File with text about the licences of the rows' sources, which is copied "
        "into the card.",
    )
    repo: str | None = Field(
        default=None,
        description="Commit each finished shard, with the card, to this dataset repository "
        "(OWNER/NAME) of the Hugging Face hub; the token is HF_TOKEN (extra: hub).",
    )
    public: bool = Field(
        default=False, description="Make --repo public. Default: private; a public one is refused."
    )
    dry_run: bool = Field(
        default=False, description="Say what would be committed to --repo; commit nothing."
    )


class HfSink(Closing):
    """Fills `folder`; see `ParquetSink` for its shards.

    Args:
        folder: created if missing.
        options: facts for the card that the shards do not contain, and limits of shards.
        choice: which rows were chosen.

    Raises:
        ConfigurationError: as `ParquetSink`, or the folder has a README.md from elsewhere, or the
            repository cannot be filled from it.
        InputError: the notes cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        options: CardOptions | None = None,
        choice: RowChoice | None = None,
    ) -> None:
        self.path = folder
        self._options = options or CardOptions()
        self._notes = _notes(self._options.licence_notes)
        choice = choice or RowChoice()
        self._fill = [choice.filters, choice.decontaminated]
        self._card = folder / "README.md"
        if self._card.exists() and _MARK not in self._card.read_text(encoding="utf-8"):
            raise ConfigurationError(
                f"{self._card}: was not written by hermes-queue; choose another --out"
            )
        licence = self._options.licence
        if licence and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", licence):
            raise ConfigurationError(
                f"licence {licence!r}: use the hub's identifier, e.g. mit or cc-by-4.0"
            )
        self._shards = ParquetSink(folder / "data", self._options)
        self.held = self._shards.held
        """See `DatasetSink.held`."""
        self._fills = _read_fills(folder / _FILLS)
        self._counts = _Counts()
        self._described: list[Path] | None = None
        self._closed = False
        try:
            self._hub = self._repository()
            self._describe()
            self._push()
        except BaseException:
            self._shards.close()
            raise

    @property
    def remarks(self) -> Sequence[str]:
        """What was committed to the repository, for people."""
        return self._hub.remarks if self._hub else ()

    def write(self, trajectories: Iterable[ScoredTrajectory]) -> int:
        """See `Sink.write`."""
        new = [t for t in trajectories if t.trajectory_id not in self.held]
        if new:
            self._note_fill()
        count, described = self._shards.write(new), self._described
        self._describe()
        if self._described != described:
            self._push()
        return count

    def close(self) -> None:
        """Write the last shard and the card, and unlock the folder. Idempotent.

        Raises:
            HermesQueueError: the disk is full, or the hub fails. Nothing is lost, see
                `ParquetSink.close`.
        """
        if not self._closed:
            self._shards.close()
            self._closed = True
            self._describe()
            if self._hub:
                self._hub.push(self._shards.shards)

    def _repository(self) -> HubRepository | None:
        options = self._options
        if options.repo:
            shown = {"public": options.public, "dry_run": options.dry_run}
            return HubRepository(self.path, options.repo, **shown)
        if options.public or options.dry_run:
            raise ConfigurationError("--public and --dry-run need --repo OWNER/NAME")
        return None

    def _push(self) -> None:
        """Commit finished shards; an outage of the hub does not end the filling of the folder."""
        try:
            if self._hub:
                self._hub.push(self._shards.shards)
        except HubUnavailable as error:
            logger.warning("%s", error, extra={"action": "shard_not_committed"})

    def _note_fill(self) -> None:
        """Record the filters of these rows before the first of them is written."""
        fill = json.loads(json.dumps(self._fill))
        if fill not in self._fills:
            with files.replacing(self.path / _FILLS) as draft:
                draft.write_text(json.dumps([*self._fills, fill]), encoding="utf-8")
            self._fills.append(fill)

    def _describe(self) -> None:
        shards = self._shards.shards
        if shards != self._described:
            for shard in shards[len(self._described or ()) :]:
                self._counts.add(shard)
            with files.replacing(self._card) as draft:
                draft.write_text(self._text(), encoding="utf-8")
            self._described = shards

    def _text(self) -> str:
        options, counts = self._options, self._counts
        parts = [
            _front_matter(options, counts.rows),
            f"{_MARK}\n\n# {_plain(options.name)}\n",
            "Agent trajectories made with hermes-queue: one row is one attempt of one agent at one "
            "task, with its conversation, its score and, where the server gave them, its token ids "
            "and logprobs.\n",
            _table("Counts", counts.totals()),
            _table("Scores", counts.scores.most_common(20)) if counts.scores else "",
            _table("Why trajectories ended", counts.by["stop_reason"].most_common()),
            _section("Filters", _filters(self._fills or [self._fill])),
            _table("Runs", counts.by["run_id"].most_common(50)),
            _table("Agents and models", counts.by["model"].most_common(50)),
            _table("Tasks and versions they were graded by", counts.versions.most_common(50)),
            _section("Licences", _licences(options.licence, self._notes)),
            _section("Columns", _COLUMN_NOTES),
        ]
        return "\n".join(part for part in parts if part)


def _read_fills(path: Path) -> list[Any]:
    try:
        return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error


class _Counts:
    """Statistics over all shards."""

    def __init__(self) -> None:
        self.rows = 0
        self.tokens = 0
        self.scored = 0
        self.sum = 0.0
        self.scores: Counter[str] = Counter()
        self.versions: Counter[str] = Counter()
        self.instances: set[str] = set()
        self.by = {name: Counter[str]() for name in ("run_id", "model", "stop_reason")}

    def add(self, shard: Path) -> None:
        import pyarrow.parquet as pq

        rows = pq.read_table(shard, columns=[*_COLUMNS, *_MORE]).to_pylist()
        for row in rows:
            self.rows += 1
            self.tokens += row["completion_tokens"]
            self.instances.add(row["instance_id"])
            if row["score"] is not None:
                self.scored += 1
                self.sum += row["score"]
                self.scores[f"{row['score']:g}"] += 1
            self.by["run_id"][row["run_id"]] += 1
            self.by["stop_reason"][row["stop_reason"]] += 1
            policy = f", policy {row['policy_version']}" if row["policy_version"] else ""
            self.by["model"][f"{row['model'] or row['agent_kind']}{policy}"] += 1
            version = json.loads(row["provenance"]).get("env_version") or "?"
            self.versions[f"{row['env']} {version}"] += 1

    def totals(self) -> list[tuple[str, object]]:
        mean = f"{self.sum / self.scored:.4f}" if self.scored else "no trajectory was measured"
        return [
            ("trajectories", self.rows),
            ("of these with a score", self.scored),
            ("mean score", mean),
            ("instances", len(self.instances)),
            ("completion tokens", self.tokens),
        ]


_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"))
"""The hub's categories, each with its end."""
_NAME_CHARACTERS = 200
_COLUMN_NOTES = """\
`score` is null, not 0, where nothing was measured. `messages` is the conversation in OpenAI's
format. `sequences` is for policy-gradient training: `ids`, `loss_mask` (1 = sampled by the policy)
and `logprobs` (0.0 where the mask is 0), exactly as the server returned them.
`agent`, `tools`, `report`, `events`, `attempts` and `provenance` are JSON text.
"""


def _front_matter(options: CardOptions, rows: int) -> str:
    lines = ["---", f"pretty_name: {json.dumps(_line(options.name), ensure_ascii=False)}"]
    if options.licence:
        lines.append(f"license: {options.licence}")
    size = next((name for limit, name in _SIZES if rows < limit), "n>1M")
    lines += ["tags:", "- agent", "- trajectories", "size_categories:", f"- {size}"]
    if rows:  # a folder without shards has no split to name
        lines += ["configs:", "- config_name: default", "  data_files:"]
        lines += ["  - split: train", "    path: data/train-*.parquet"]
    return "\n".join([*lines, "---", ""])


def _filters(fills: list[Any]) -> str:
    texts = [_filled_by(filters, decontaminated) for filters, decontaminated in fills]
    if len(texts) == 1:
        return texts[0]
    head = "This folder was filled more than once. Each row passed one of these filters.\n\n"
    return head + "\n".join(f"Filling {n}:\n\n{text}" for n, text in enumerate(texts, start=1))


def _filled_by(filters: Mapping[str, Any], decontaminated: int | None) -> str:
    lines = [f"- `{name}`: {value}" for name, value in filters.items()]
    if decontaminated:
        lines.append(f"- without {decontaminated} listed instances and repositories")
    return "\n".join(lines or ["Only the default: trajectories that were measured."]) + "\n"


def _licences(licence: str | None, notes: str | None) -> str:
    stated = f"This dataset: {licence or 'not stated'}."
    notes = notes or (
        "Rows contain text and code of the tasks they are made from, and texts of models. The "
        "makers of this dataset did not state their licences; check them before you share it."
    )
    return f"{stated}\n\n{notes.strip()}\n"


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}"


def _table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    lines = [f"| {_plain(str(name))} | {value} |" for name, value in rows]
    return _section(title, "\n".join(["| | |", "|---|---:|", *lines, ""]))


def _plain(text: str) -> str:
    """A name, which may come from a record, as Markdown: without cells, links and HTML."""
    return re.sub(r"[\\`*\[\]<>|&~]", r"\\\g<0>", _line(text))


def _line(text: str) -> str:
    return re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", " ", text).strip()[:_NAME_CHARACTERS]


def _notes(path: Path | None) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path else None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


FORMAT = Format(
    help="A Hugging Face dataset folder OUT: Parquet shards and a data card (extra: parquet).",
    open=HfSink,
    options=CardOptions,
)
