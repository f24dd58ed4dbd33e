"""Tasks as lines of a file: `hermes-queue tasks export` and `import`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes_queue.errors import InputError
from hermes_queue.ledger.tasks.task import ID_CHARACTERS, SUM_MOST, Task
from hermes_queue.wire.names import Name

LINE_BYTES = 64 << 10
"""A longer line is refused before it is parsed."""

_Count = Annotated[int, Field(ge=0, le=int(SUM_MOST))]
_Sum = Annotated[float, Field(ge=0, le=SUM_MOST, allow_inf_nan=False)]
_Score = Annotated[float, Field(ge=-SUM_MOST, le=SUM_MOST, allow_inf_nan=False)]
_Time = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
_Text = Annotated[str, Field(max_length=ID_CHARACTERS)]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Cause(_Line):
    cause: _Text
    stage: _Text = ""
    times: _Count = 0
    last: _Time = 0.0


class _Rated(_Line):
    scored: _Count = 0
    passes: _Count = 0
    score: _Score = 0.0
    timed: _Count = 0
    seconds: _Sum = 0.0
    squares: _Sum = 0.0


class _SolverLine(_Rated):
    model: _Text
    policy: _Text = ""
    last: _Time = 0.0


class TaskLine(_Rated):
    """One task; a sum that is left out is 0."""

    env: Name
    item_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    id: _Text = ""
    version: _Text = ""
    first: _Time = 0.0
    last: _Time
    attempts: _Count = 0
    usd: _Sum = 0.0
    priced: _Count = 0
    tokens: _Count = 0
    regraded: _Count = 0
    flips: _Count = 0
    deaths: _Count = 0
    causes: tuple[_Cause, ...] = Field(default=(), max_length=64)
    solvers: tuple[_SolverLine, ...] = Field(default=(), max_length=64)


def line_of(task: Task) -> str:
    """A task as one line of JSON, without the line's end."""
    fields = {"env": task.env, "item_sha256": task.item_sha256, **_tidy(task.fields())}
    return json.dumps(fields, ensure_ascii=False)


def tasks_in(lines: Iterable[bytes], name: str) -> Iterator[Task]:
    """The tasks of a file's lines; empty lines are passed over.

    Raises:
        InputError: a line is not a task; names the line, the field and the fix.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{name}:{number}"
        if len(line) > LINE_BYTES:
            raise InputError(f"{place}: has more than {LINE_BYTES} bytes; remove this line")
        try:
            found = TaskLine.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the line"
            raise InputError(
                f"{place}: {where}: {first['msg']}; lines are as `hermes-queue tasks export` "
                "writes them: correct or remove this one (earlier lines may be imported already, "
                "and importing them again changes nothing)"
            ) from error
        raw = found.model_dump_json(exclude={"env", "item_sha256"}).encode()
        task = Task.read(found.env, found.item_sha256, raw)
        assert task is not None  # noqa: S101 - it was just written
        yield task


def _tidy(value: Any) -> Any:
    """Whole floats as integers."""
    if isinstance(value, dict):
        return {name: _tidy(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_tidy(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
