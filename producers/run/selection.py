"""Reads and validates all rows of a run before anything is enqueued."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from pydantic import BaseModel, ValidationError

from envs.base import Environment, needs_of
from hermes_queue.bodies import codec
from hermes_queue.errors import ConfigurationError, InputError, PayloadTooLarge
from hermes_queue.settings import ProducerSettings
from hermes_queue.wire.names import group_key
from producers.run.dataset import Dataset, SourceRow
from producers.run.options import DEFAULT_ITEMS, ProducerOptions, RowOptions
from producers.run.programs import Misfit
from producers.source import Producer, SelectedItem

Sieve = Callable[[Sequence[SelectedItem]], Sequence[str | None]]
"""Says why rows are left out; None = they are not."""
_SIFTED_AT_ONCE = 64
"""Rows that are read before they are sifted; as many may be read in vain."""


@dataclass(slots=True)
class SelectedItems:
    """The rows of a dataset that a run will use."""

    dataset: str
    items: MutableSequence[SelectedItem] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of rows that are not tasks, by reason."""
    first_skipped: dict[str, str] = field(default_factory=dict)
    """Place of the first of them, by reason."""
    notes: list[str] = field(default_factory=list)
    absent: frozenset[str] = frozenset()
    """Requested instance ids that the dataset does not have."""
    _by_id: dict[str, SelectedItem] = field(default_factory=dict)

    def remember(self, item: SelectedItem) -> None:
        """Remember an item with a new instance id, which may be taken next."""
        self._by_id[item.instance_id] = item

    def first(self, instance_id: str) -> SelectedItem | None:
        """The item with this instance id."""
        return self._by_id.get(instance_id)

    def skip(self, reason: str, place: str) -> None:
        """Count a row that is no task."""
        self.skipped[reason] += 1
        self.first_skipped.setdefault(reason, place)

    def skip_lines(self) -> list[str]:
        """What was skipped, for people: one line for each reason."""
        return [
            f"skipped {count} rows ({self.first_skipped[reason]}{', ...' * (count > 1)}): "
            + " ".join(reason.split())
            for reason, count in self.skipped.items()
        ]


def select(
    producer: Producer,
    env: Environment[Any],
    dataset: Dataset,
    options: ProducerOptions,
    misfit: Misfit | None = None,
    *,
    absent_ok: bool = False,
    sift: Sieve | None = None,
    into: SelectedItems | None = None,
) -> SelectedItems:
    """The items that `options` select, validated with the env's `Item`.

    Rows that are not tasks (no tests, no statement), and items for which `misfit` or `sift` has a
    reason, are counted in `skipped`; every other unusable row is an error, because skipping it
    would hide a broken dataset. With `absent_ok`, requested ids that do not exist are in `absent`.
    `into` is an empty selection to add the items to.

    Raises:
        InputError: a row is unusable (the message names place, field and fix), a requested
            `--instance-id` does not exist, or no row is left.
        PayloadTooLarge: a row exceeds the size limit.
        ConfigurationError: flags contradict each other, or a hook of the producer fails.
    """
    selection = into if into is not None else SelectedItems(dataset.name)
    selector = _Selector(producer, env, dataset, options, misfit, selection)
    selector.sift = sift
    return selector.run(absent_ok=absent_ok)


class _Selector:
    """One pass over the dataset."""

    def __init__(
        self,
        producer: Producer,
        env: Environment[Any],
        dataset: Dataset,
        options: ProducerOptions,
        misfit: Misfit | None,
        selection: SelectedItems,
    ) -> None:
        self._producer = producer
        self._env = env
        self._dataset = dataset
        self._options, self._whole = options.rows, options
        self._own = options.own
        self._misfit = misfit
        self._tampers = options.agent.kind == "tamper"
        self._requested_ids = set(self._options.instance_id)
        self._limit = _limit(self._options)
        settings = ProducerSettings()
        self._cap_bytes, self._inline_bytes = settings.item_max_bytes, settings.item_inline_bytes
        self._columns = _columns(env.Item)
        name, split = dataset.name, getattr(dataset, "split", None)
        self._is_evaluation = producer.call("evaluation", name, split, place=f"--dataset {name}")
        self._selection = selection
        self.sift: Sieve | None = None
        self._unsifted: list[SelectedItem] = []

    def run(self, *, absent_ok: bool) -> SelectedItems:
        missing, items = set(self._requested_ids), self._selection.items
        seed = self._options.seed if self._options.shuffle else None
        unread: InputError | None = None
        for row in islice(self._dataset.rows(seed), self._options.offset, None):
            if len(items) == self._limit or (self._requested_ids and not missing):
                break
            try:
                data = self._prepared(row)
            except InputError as error:
                if not self._requested_ids:
                    raise
                unread = unread or error  # it may be one that nobody asked for
                continue
            if self._requested_ids:
                instance_id = self._id_of(data)
                if instance_id not in missing:
                    continue
                missing.discard(instance_id)
            self._take(row.place, data)
        self._sift()
        if absent_ok:
            self._selection.absent = frozenset(missing)
            return self._selection
        if missing:
            raise InputError(
                f"--instance-id {', '.join(sorted(missing))}: not in {self._dataset.name}"
                + (f", where a row cannot be read: {unread}" if unread else "")
            )
        if not items:
            raise InputError(self._why_empty())
        self._repeat()
        return self._selection

    def _prepared(self, row: SourceRow) -> dict[str, Any]:
        """The row as its env reads it, marked if the dataset is an evaluation."""
        try:
            data = self._producer.call("prepare", row.data, self._own, place=row.place)
        except InputError as error:
            if row.place in str(error):
                raise
            raise InputError(f"{row.place}: {error}") from error
        if not isinstance(data, dict):
            raise ConfigurationError(
                f"{row.place}: prepare of producer {self._producer.name!r} returned "
                f"{type(data).__name__}, not a dict; correct the hook"
            )
        return {**data, "evaluation": True} if self._is_evaluation else data

    def _id_of(self, data: dict[str, Any]) -> str | None:
        """The instance id of a row; None if the row is invalid."""
        if "instance_id" in data:
            return str(data["instance_id"])
        try:
            return str(self._env.Item.model_validate(data).instance_id)
        except ValidationError:
            return None

    def _take(self, place: str, data: dict[str, Any]) -> None:
        if not self._columns.intersection(data):
            raise InputError(
                f"{place}: the {self._env.name} env has no use for the columns "
                f"{', '.join(map(repr, list(data)[:12])) or '(none)'}; it "
                f"{_wanted(self._env.Item)}: rename them or choose another --env"
            )
        reason = self._producer.call("skip_reason", data, self._own, place=place)
        if reason is not None:
            self._selection.skip(reason, place)
            return
        item = self._validate(place, data)
        if self._misfit and (reason := self._misfit(item)):
            self._selection.skip(reason, place)
            return
        instance_id = str(item.instance_id)
        encoded = self._encoded(place, item)
        if len(encoded) > self._cap_bytes:
            raise PayloadTooLarge(
                f"{place}: row {instance_id!r} has {len(encoded)} bytes, the cap is "
                f"{self._cap_bytes}; remove columns that it does not need, or raise "
                "HERMES_QUEUE_PRODUCER_ITEM_MAX_BYTES"
            )
        cases = tuple(self._env.tamper(item)) if self._tampers else ()
        packed, key = codec.compress_item(encoded), group_key(instance_id)
        is_large = len(encoded) > self._inline_bytes
        sha256 = hashlib.sha256(encoded).hexdigest() if is_large else ""
        limits = self._producer.call("limits", data, self._whole, place=place)
        size = len(encoded)
        needs = needs_of(self._env, item, self._whole.run.profile)
        selected = SelectedItem(place, instance_id, key, packed, size, sha256, cases, limits, needs)
        if not self._is_repetition(selected):
            self._selection.remember(selected)
            (self._unsifted if self.sift else self._selection.items).append(selected)
        if len(self._unsifted) >= _SIFTED_AT_ONCE:
            self._sift()

    def _sift(self) -> None:
        """Take those of the last rows that are not left out."""
        if self.sift is None:
            return
        items, rows = self._selection.items, self._unsifted
        for row, reason in zip(rows, self.sift(rows), strict=True):
            if reason is not None:
                self._selection.skip(reason, row.place)
            elif len(items) != self._limit:
                items.append(row)
        rows.clear()

    def _validate(self, place: str, data: dict[str, Any]) -> Any:
        try:
            return self._env.Item.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the row"
            more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
            raise InputError(
                f"{place}: {where}: {first['msg']}{more}; correct this row for the "
                f"{self._env.name} env, or avoid it with --offset or --instance-id; "
                "nothing was enqueued"
            ) from error

    def _encoded(self, place: str, item: Any) -> bytes:
        try:
            return codec.encode_item(item.model_dump(mode="json", by_alias=True, round_trip=True))
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            raise InputError(
                f"{place}: a text has half a character, {half}, which UTF-8 cannot encode; correct "
                "this row, or avoid it with --offset or --instance-id; nothing was enqueued"
            ) from error

    def _is_repetition(self, selected: SelectedItem) -> bool:
        """Whether the row repeats an earlier one; of another, the results would be overwritten."""
        first = self._selection.first(selected.instance_id)
        if first is None:
            return False
        if first.packed != selected.packed:
            raise InputError(
                f"{selected.place}: instance_id {selected.instance_id!r} is also the id of "
                f"another row at {first.place}; ids must be unique: rename one of the two"
            )
        self._selection.skip("repeats an earlier row", selected.place)
        return True

    def _why_empty(self) -> str:
        skipped = self._selection.skipped
        name = self._dataset.name
        if skipped:
            reasons = "; ".join(self._selection.skip_lines())
            return f"{name}: no row is left for the {self._env.name} env: {reasons}"
        if self._options.offset:
            return f"{name}: has no rows after --offset {self._options.offset}"
        return f"{name}: holds no rows"

    def _repeat(self) -> None:
        """Repeat the dataset under `--cycle`, or note that it has fewer rows than `--items`."""
        items = self._selection.items
        if self._limit is None or self._requested_ids:
            return
        unique = len(items)
        if unique < self._limit and not self._options.cycle:
            if self._options.items is not None:
                self._selection.notes.append(
                    f"{self._dataset.name} has only {unique} usable rows after the offset; "
                    "use --cycle to repeat them"
                )
            return
        for position in range(unique, self._limit):
            first = items[position % unique]
            key = group_key(first.instance_id, repetition=position // unique + 1)
            items.append(replace(first, key=key))


def _limit(options: RowOptions) -> int | None:
    """The number of items to select; None = all."""
    if options.items is None and not options.instance_id:
        return DEFAULT_ITEMS
    if isinstance(options.items, int):
        return options.items
    if options.cycle:
        raise ConfigurationError("--cycle never ends: give a number of rows with --items N")
    return None


def _columns(item: type[BaseModel]) -> set[str]:
    names = set(item.model_fields)
    for info in item.model_fields.values():
        names.update(_aliases(info.alias), _aliases(info.validation_alias))
    return names


def _aliases(alias: Any) -> list[str]:
    if alias is None or isinstance(alias, str):
        return [alias] if alias else []
    choices = getattr(alias, "choices", [alias])
    return [str(getattr(choice, "path", [choice])[0]) for choice in choices]


def _wanted(item: type[BaseModel]) -> str:
    fields = item.model_fields.items()
    required = [info.alias or name for name, info in fields if info.is_required()]
    if required:
        return f"needs {', '.join(required)}"
    return f"takes {', '.join(sorted(item.model_fields))}"
