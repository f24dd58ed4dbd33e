"""Trajectories as rows of Arrow tables, for Parquet shards and Hugging Face folders.

Column types are limited to those that pyarrow, `datasets` and pandas all read: no maps, no
dictionaries. Fields whose form depends on the env (report, tools, ...) are JSON text.
`sequences` holds token ids, masks and logprobs, bit for bit; `turns` holds the other figures of
the turns and does not repeat them. Names of hosts and endpoints are omitted, because datasets
are meant to be shared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

from pydantic import BaseModel

from hermes_queue.errors import ConfigurationError
from hermes_queue.models import ATTEMPT_SUMMARY, Message, ScoredTrajectory, TokenSequence, Turn
from hermes_queue.sinks.anonymity import Anonymous
from hermes_queue.wire.arrays import TypeCode, packed_bytes

ROWS_VERSION = 1
"""Rises whenever a column is renamed, removed or changes its type."""

_PLAIN = ("trajectory_id", "run_id", "group_id", "sample_index", "group_size", "env", "instance_id")
_OUTCOME = ("attempt", "epoch", "status", "stop_reason", "score", "cost_usd", "created")
_NULLABLE = ("policy_version", "requeued_from")
_COUNTS = ("attempted", "schema_valid", "ok", "error")
_USAGE = ("prompt_tokens", "completion_tokens", "cached_tokens")
_FAILURE = ("cause", "stage", "type", "message")
_INTEGERS = {"sample_index", "group_size", "attempt", "epoch"}
_FLOATS = {"score", "cost_usd", "created"}
REPETITIVE = (
    *("run_id", "group_id", "env", "instance_id", "policy_version", "status", "stop_reason"),
    *("failure_cause", "failure_stage", "failure_type", "agent_kind", "model", "agent", "tools"),
)
"""Columns with few distinct values, which Parquet should dictionary-encode. Trying that on the
other columns would take longer than writing them."""
_PRIVATE = {"agent": {"base_url"}, "provenance": {"host", "worker", "sandbox_id", "image"}}
_PROGRAM = {"name", "version", "exit_code", "seconds", "cpu_s", "other_requests", "refused"}
"""Of a program's run; its output and files are evidence, and name what they like."""


def arrow() -> Any:
    """The pyarrow library.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigurationError(
            "Parquet needs pyarrow: pip install 'hermes-queue[parquet]'"
        ) from error
    return pyarrow


@cache
def schema() -> Any:
    """The columns, in order."""
    pa = arrow()
    text, real, whole = pa.string(), pa.float64(), pa.int64()

    def plain(names: Iterable[str]) -> list[tuple[str, Any]]:
        return [(n, whole if n in _INTEGERS else real if n in _FLOATS else text) for n in names]

    def listed(**fields: Any) -> Any:
        return pa.list_(pa.struct(list(fields.items())))

    return pa.schema(
        [
            *plain((*_PLAIN, *_NULLABLE, *_OUTCOME)),
            ("rewards", listed(name=text, value=real)),
            *((f"failure_{name}", text) for name in _FAILURE),
            ("agent_kind", text),
            ("model", text),
            (
                "messages",
                listed(
                    role=text,
                    content=text,
                    reasoning=text,
                    tool_calls=listed(id=text, name=text, arguments=text),
                    tool_call_id=text,
                ),
            ),
            (
                "sequences",
                listed(
                    ids=pa.list_(pa.int32()),
                    loss_mask=pa.list_(pa.uint8()),
                    logprobs=pa.list_(pa.float32()),
                ),
            ),
            (
                "turns",
                listed(
                    prompt_tokens=whole,
                    completion_tokens=whole,
                    finish_reason=text,
                    policy_version=text,
                    logprobs_mode=text,
                    latency_s=real,
                ),
            ),
            *((f"tool_calls_{name}", whole) for name in _COUNTS),
            *((name, whole) for name in _USAGE),
            ("stage_seconds", listed(name=text, seconds=real)),
            *((name, text) for name in ("tools", "agent", "report", "events", "attempts")),
            ("provenance", text),
        ]
    )


def batch(records: Sequence[ScoredTrajectory]) -> Any:
    """One Arrow record batch with one row per record."""
    pa = arrow()
    columns: dict[str, list[Any]] = {
        name: [getattr(r, name) for r in records] for name in (*_PLAIN, *_NULLABLE, *_OUTCOME)
    }
    places = [Anonymous(r) for r in records]
    for name in _FAILURE:
        columns[f"failure_{name}"] = [
            place.text(str(getattr(record.failure, name))) if record.failure else None
            for place, record in zip(places, records, strict=True)
        ]
    for name in _COUNTS:
        columns[f"tool_calls_{name}"] = [getattr(r.tool_calls, name) for r in records]
    for name in _USAGE:
        columns[name] = [getattr(r.usage, name) for r in records]
    columns |= {
        "rewards": [_named(r.rewards, "value") for r in records],
        "stage_seconds": [_named(r.stage_seconds, "seconds") for r in records],
        "agent_kind": [r.agent.kind for r in records],
        "model": [r.agent.model for r in records],
        "messages": [[_message(m) for m in r.messages] for r in records],
        "turns": [[_turn(t) for t in r.turns] for r in records],
    }
    columns["attempts"] = [
        _json(place.tree([a.model_dump(mode="json", include=ATTEMPT_SUMMARY) for a in r.attempts]))
        for place, r in zip(places, records, strict=True)
    ]
    columns["events"] = [
        _json(place.tree(r.events)) for place, r in zip(places, records, strict=True)
    ]
    for name in ("tools", "agent", "report"):
        columns[name] = [_json(getattr(r, name), _PRIVATE.get(name)) for r in records]
    columns["provenance"] = [
        _json(_provenance(place, r)) for place, r in zip(places, records, strict=True)
    ]
    made = [
        _sequences([r.sequences for r in records])
        if field.name == "sequences"
        else pa.array(columns[field.name], type=field.type)
        for field in schema()
    ]
    return pa.RecordBatch.from_arrays(made, schema=schema())


def _sequences(rows: Sequence[tuple[TokenSequence, ...] | None]) -> Any:
    """The column `sequences`, built from flat buffers: it holds nearly all values of a record."""
    pa = arrow()
    flat = [sequence for row in rows for sequence in row or ()]
    values = pa.StructArray.from_arrays(
        [
            _lists([s.ids for s in flat], "i", pa.int32()),
            _lists([s.loss_mask for s in flat], "B", pa.uint8()),
            _lists([s.logprobs for s in flat], "f", pa.float32()),
        ],
        fields=list(schema().field("sequences").type.value_type),
    )
    return pa.ListArray.from_arrays(
        _offsets(len(row or ()) for row in rows),
        values,
        type=schema().field("sequences").type,
        mask=pa.array([row is None for row in rows]),
    )


def _lists(rows: Sequence[Sequence[float]], code: TypeCode, kind: Any) -> Any:
    """Lists of one type."""
    pa = arrow()
    packed = b"".join(packed_bytes(code, row) for row in rows)
    flat = pa.Array.from_buffers(kind, sum(map(len, rows)), [None, pa.py_buffer(packed)])
    return pa.ListArray.from_arrays(_offsets(len(row) for row in rows), flat)


def _offsets(lengths: Iterable[int]) -> Any:
    pa = arrow()
    return pa.array([0, *accumulate(lengths)], type=pa.int32())


def _message(message: Message) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": message.content,
        "reasoning": message.reasoning,
        "tool_calls": [
            {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
            for call in message.tool_calls
        ],
        "tool_call_id": message.tool_call_id,
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "prompt_tokens": turn.usage.prompt_tokens,
        "completion_tokens": turn.usage.completion_tokens,
        "finish_reason": turn.finish_reason,
        "policy_version": turn.policy_version,
        "logprobs_mode": turn.logprobs_mode,
        "latency_s": turn.latency_s,
    }


def _provenance(place: Anonymous, record: ScoredTrajectory) -> Any:
    """Where a record comes from; of a program also its run, and the label of each sequence.

    These are no columns, so that a dataset may hold rows of programs and others.
    """
    found = record.provenance.model_dump(mode="json", exclude=_PRIVATE["provenance"])
    if record.program:
        found["program"] = place.tree(record.program.model_dump(mode="json", include=_PROGRAM))
    if record.branches:
        found["branches"] = [each.branch for each in record.sequences or ()]
    return found


def _named(values: Mapping[str, float], column: str) -> list[dict[str, Any]]:
    return [{"name": name, column: value} for name, value in values.items()]


def _json(value: Any, without: set[str] | None = None) -> str:
    """Compact JSON of plain values or models; models without the fields in `without`."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude=without)
    return json.dumps(value, default=_plain, separators=(",", ":"), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} cannot be JSON")
