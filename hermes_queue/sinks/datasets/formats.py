"""The formats of datasets by name, as the commands offer them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_queue.sinks.base import DatasetSink
from hermes_queue.sinks.datasets.hf import CardFacts, HfSink
from hermes_queue.sinks.datasets.jsonl import JsonlSink
from hermes_queue.sinks.datasets.openai_chat import OpenAiSink
from hermes_queue.sinks.datasets.parquet import ParquetSink
from hermes_queue.sinks.datasets.sharegpt import ShareGptSink


@dataclass(frozen=True, slots=True)
class Shape:
    """How a dataset is cut and described, where its format has a say in that."""

    shards: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `ParquetSink`."""
    card: CardFacts = field(default_factory=CardFacts)


@dataclass(frozen=True, slots=True)
class Format:
    """One format."""

    name: str
    help: str
    """What it is, and what --out names."""
    keeps_failed: bool
    """Whether by default trajectories without a score have rows, too."""
    open: Callable[[Path, Shape], DatasetSink]
    """Raises ConfigurationError where it cannot write to the path."""


FORMATS = {
    kind.name: kind
    for kind in (
        Format(
            "jsonl",
            "Whole records, one JSON object per line of the file OUT.",
            True,
            lambda out, shape: JsonlSink(out),
        ),
        Format(
            "parquet",
            "Whole records as Parquet shards in the directory OUT (extra: parquet).",
            True,
            lambda out, shape: ParquetSink(out, **shape.shards),
        ),
        Format(
            "sharegpt",
            "Conversations as hermes-agent's batch runner writes them, with a reward, in the "
            "JSON-lines file OUT.",
            False,
            lambda out, shape: ShareGptSink(out),
        ),
        Format(
            "openai",
            "OpenAI's fine-tuning chat format, in the JSON-lines file OUT.",
            False,
            lambda out, shape: OpenAiSink(out),
        ),
        Format(
            "hf",
            "A Hugging Face dataset folder OUT: Parquet shards and a data card (extra: parquet).",
            False,
            lambda out, shape: HfSink(out, shape.card, **shape.shards),
        ),
    )
}
