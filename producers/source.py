"""A source of rows: what a producer's module defines, and the rows that a run takes from it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from hermes_queue.errors import ConfigurationError, HermesQueueError, TrajectoryFailure
from producers.run.dataset import BUNDLED, Dataset, open_dataset
from producers.run.flags import Options


@dataclass(frozen=True, slots=True)
class SelectedItem:
    """One validated item; `key` distinguishes its repetitions under `--cycle`."""

    place: str
    instance_id: str
    key: str
    packed: bytes
    size_bytes: int
    sha256: str
    """Hash of the item if it is too large to travel inside its jobs, else ""."""
    tamper_cases: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    """Fields of `Limits` that this item has of its own; flags take precedence."""
    needs: str = ""
    """See `TrajectoryJob`."""

    @property
    def item_sha256(self) -> str:
        """Hash of the item, however it travels."""
        from hermes_queue.bodies import codec

        return self.sha256 or codec.packed_sha256(self.packed)

    def item(self) -> dict[str, Any]:
        """The item in the form that jobs carry."""
        from hermes_queue.bodies import codec  # with the models, which `--help` does not need

        return codec.decompress_item(self.packed)


@dataclass(frozen=True)
class Producer:
    """A source of rows and the env that runs them.

    `prepare` is called for every row that is read, `skip_reason` for every prepared row that the
    flags select, `check` once with all selected items.
    """

    name: str
    """Name of the module: `python -m producers.<name>`."""
    env: str
    description: str
    """First sentence of `--help`."""
    dataset: str = BUNDLED
    """Default of `--dataset`."""
    options: type[Options] = Options
    """Flags that only this producer has, as a subclass of `producers.run.flags.Options`."""
    prepare: Callable[[dict[str, Any], Any], dict[str, Any]] = lambda row, _: row
    """Adapt a raw row to the env's `Item`; the second argument is an instance of `options`. Must
    not modify the row."""
    skip_reason: Callable[[dict[str, Any], Any], str | None] = lambda _, __: None
    """The reason why a prepared row is not a task, or None; the second argument is an instance of
    `options`. Such rows are counted and skipped."""
    check: Callable[[Sequence[SelectedItem], Any], int | None] = lambda _, __: None
    """Examine the selected rows instead of running them, and return the exit code; None to run
    them. The second argument is the `producers.run.options.ProducerOptions` of the command."""
    open: Callable[[str], Dataset | None] = lambda _: None
    """Open a dataset of a kind that only this producer reads, by the value of `--dataset`; None if
    it is not of that kind. Raises InputError."""
    evaluation: Callable[[str, str | None], bool] = lambda _, __: False
    """Whether a dataset is one that models are measured with, by the value of `--dataset` and the
    split (None for files): its rows then get `evaluation: true`, so nothing is trained on them. The
    env's `Item` must have that field."""
    limits: Callable[[dict[str, Any], Any], Mapping[str, float]] = lambda _, __: {}
    """The fields of `Limits` that a prepared row has of its own, used where no flag is given. The
    second argument is the `producers.run.options.ProducerOptions` of the command."""
    provide: Callable[[Sequence[SelectedItem], Any, Callable[[str], None]], None] = (
        lambda _, __, ___: None
    )
    """Bring what the selected rows need to this machine, before a worker is started on it. The
    second argument is the `producers.run.options.ProducerOptions` of the command, the third takes
    a line for the user. Raises HermesQueueError: it cannot be had; says what to do."""
    examples: str = ""
    """Text before the shared examples of `--help`."""

    @property
    def bundled(self) -> Path:
        """The rows that are part of this package."""
        return Path(__file__).parent / "data" / f"{self.name}.jsonl"

    def has_rows(self) -> bool:
        """Whether rows are part of this package."""
        return self.bundled.exists() or self.open(BUNDLED) is not None

    def dataset_of(self, name: str | None, split: str | None = None) -> Dataset:
        """The dataset that `--dataset name` refers to; see `open_dataset`."""
        name = name or self.dataset
        if split is None and (own := self.call("open", name, place=f"--dataset {name}")):
            return cast(Dataset, own)
        return open_dataset(name, bundled=self.bundled, split=split)

    def call(self, hook: str, *arguments: Any, place: str) -> Any:
        """Call the hook of that name; `place` is the row's place or the dataset.

        Raises:
            ConfigurationError: the hook raised anything but an error of ours; the message names
                the producer, the hook and the line.
        """
        try:
            return getattr(self, hook)(*arguments)
        except (HermesQueueError, TrajectoryFailure):
            raise
        except Exception as error:  # a foreign function may raise anything
            frames = traceback.extract_tb(error.__traceback__)[1:]
            # Of what a library raises deep inside, the line that its author can change.
            own = [frame for frame in frames if frame.filename == frames[0].filename]
            where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
            raise ConfigurationError(
                f"{place}: {hook} of producer {self.name!r} raised "
                f"{type(error).__name__}: {error}{where}; correct the hook"
            ) from error
