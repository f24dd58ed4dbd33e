"""The file of a mix: TOML, checked field by field."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from hermes_plugins.mix.tuning import (
    BACKLOG_MAX,
    SOURCE_NAME,
    WEIGHT_MAX,
    WEIGHT_MIN,
    LiveSettings,
    SourceSettings,
)
from hermes_queue.broker.submission import RUN_ID_MAX
from hermes_queue.errors import ConfigurationError, InputError
from hermes_queue.ledger.answers import RunPart
from hermes_queue.ledger.fleet.pacing import AHEAD_MAX

FILE_BYTES_MAX = 1 << 20
SOURCES_MAX = 256
_BUDGET_MAX = 1e14
_MIX_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

FlagValue = str | int | float | bool | list[Any] | dict[str, Any]
Flags = dict[str, FlagValue]
"""Flags of a producer by name, without the hyphens."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Backlog(_Table):
    """Trajectories of the mix that wait for a worker, parked and held ones too."""

    low: int = Field(default=128, ge=0, le=BACKLOG_MAX)
    """At this number or fewer the producer fills up."""
    high: int = Field(default=512, ge=1, le=BACKLOG_MAX)
    """At this number it stops; the last group may exceed it."""

    @model_validator(mode="after")
    def _ordered(self) -> Backlog:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low} must be below high = {self.high}")
        return self


class Quota(_Table):
    """What a source gives at most; it is done then."""

    items: int | None = Field(default=None, ge=0)
    trajectories: int | None = Field(default=None, ge=0)


def _epochs(value: Any) -> Any:
    return None if value == "endless" else value


class ByPassRate(_Table):
    """Rows that the model neither always nor never solves, as the memory of tasks knows them."""

    kind: Literal["pass_rate"]
    band: tuple[float, float] = (0.2, 0.8)
    """Rows with a pass rate from the first to the second are preferred."""
    min_attempts: Annotated[int, Field(ge=1, le=10_000)] = 4
    """A row with fewer scored attempts is unknown."""
    explore: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of the unknown rows that each epoch takes."""
    outside: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of the rows outside of the band, apart from those always or never solved."""
    revisit: Annotated[float, Field(ge=0, le=1)] = 0.02
    """Share of the rows that were always or never solved: what is known may no longer be so."""
    model: str | None = None
    """Whose attempts count; None = those of the source's own model."""
    policies: Annotated[int, Field(ge=1)] | None = None
    """Count only the newest N policy versions of the model; None = all that are remembered."""

    @model_validator(mode="after")
    def _ordered(self) -> ByPassRate:
        low, high = self.band
        if not 0 <= low <= high <= 1:
            raise ValueError(f"band = [{low:g}, {high:g}]: give two rates from 0 to 1, lower first")
        if self.explore == 0:
            raise ValueError("explore = 0: what nobody has tried never would be; allow a share")
        return self


class InOrder(_Table):
    """All rows, in the order of their file or shuffled, epoch by epoch; or any row at any time."""

    kind: Literal["shuffle", "in_order", "uniform"] = "shuffle"


SamplerTable = Annotated[InOrder | ByPassRate, Field(union_mode="left_to_right")]


def _named_kind(value: Any) -> Any:
    """`sampler = "uniform"` is short for a table with that kind."""
    kind = value if isinstance(value, str) else value.get("kind") if isinstance(value, dict) else 0
    known = ("shuffle", "in_order", "uniform", "pass_rate")
    if kind not in (*known, None):
        raise ValueError(f"kind {kind!r}: there are {', '.join(known)}")
    if isinstance(value, str):
        value = {"kind": value}
    model = ByPassRate if kind == "pass_rate" else InOrder
    return model.model_validate(value)


def _possible_weight(weight: float) -> float:
    if weight and not WEIGHT_MIN <= weight <= WEIGHT_MAX:
        raise ValueError(f"use 0 (nothing of it), or {WEIGHT_MIN:g} to {WEIGHT_MAX:g}")
    return weight


class SourceTable(_Table):
    """One `[sources.NAME]`."""

    producer: str
    """As in `python -m producers NAME`."""
    weight: Annotated[float, AfterValidator(_possible_weight)] = 1.0
    pause: bool = False
    epochs: Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_epochs)] = None
    """Times that each row is taken; None ("endless") = as long as the mix is served."""
    quota: Quota = Quota()
    sampler: Annotated[SamplerTable, BeforeValidator(_named_kind)] = InOrder()
    flags: Flags = {}

    @model_validator(mode="after")
    def _possible(self) -> SourceTable:
        if self.sampler.kind == "uniform" and self.epochs is not None:
            raise ValueError("epochs: sampler uniform has none; use quota.items, or shuffle")
        return self


class PartOfSlots(_Table):
    """The run's part of the slots, as `--team`, `--weight` and `--max-running` of a producer."""

    team: str = ""
    weight: float | None = None
    max_running: int | None = None

    @model_validator(mode="after")
    def _possible(self) -> PartOfSlots:
        try:
            RunPart.of(**self.model_dump())
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return self


class Budgets(_Table):
    """Budgets of the run, as those of any other."""

    cost_usd: float | None = Field(default=None, gt=0, le=_BUDGET_MAX)
    tokens: float | None = Field(default=None, gt=0, le=_BUDGET_MAX)
    slot_hours: float | None = Field(default=None, gt=0, le=_BUDGET_MAX)
    wall_s: float | None = Field(default=None, gt=0, le=_BUDGET_MAX)

    def given(self) -> dict[str, float]:
        """Those that are set, by the names that `set_budgets` takes."""
        found = self.model_dump(exclude_none=True)
        hours = found.pop("slot_hours", None)
        return found if hours is None else found | {"slot_s": 3600 * hours}


def _possible_name(name: str) -> str:
    if name.endswith("."):
        raise ValueError("must not end with a dot")
    return name


class MixDocument(_Table):
    """The whole file."""

    name: Annotated[
        str, Field(pattern=_MIX_NAME, max_length=RUN_ID_MAX), AfterValidator(_possible_name)
    ]
    """Name of the mix and of its run."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    share: Literal["groups", "trajectories"] = "groups"
    """What the weights divide."""
    backlog: Backlog = Backlog()
    max_ahead: int | None = Field(default=None, ge=1, le=AHEAD_MAX)
    """As `--max-ahead` of a producer."""
    max_drift: float | None = Field(default=None, ge=0, le=1)
    """As `--max-drift` of a producer."""
    budgets: Budgets = Budgets()
    slots: PartOfSlots = PartOfSlots()
    flags: Flags = {}
    """Flags of every source; its own ones take precedence."""
    sources: dict[Annotated[str, Field(pattern=SOURCE_NAME)], SourceTable] = Field(
        min_length=1, max_length=SOURCES_MAX
    )

    @property
    def part(self) -> RunPart:
        """The run's part of the slots."""
        return RunPart.of(**self.slots.model_dump())

    def settings(self) -> LiveSettings:
        """What of it can change while it is served."""
        of_sources = {
            name: SourceSettings(
                weight=source.weight,
                items=source.quota.items,
                trajectories=source.quota.trajectories,
                pause=source.pause,
            )
            for name, source in self.sources.items()
        }
        return LiveSettings(self.backlog.low, self.backlog.high, of_sources)


def read_mix(path: Path) -> MixDocument:
    """The mix that a file describes.

    Raises:
        InputError: it cannot be read or describes no mix; names the file, the field and the fix.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise InputError(f"{path}: has more than {FILE_BYTES_MAX:,} bytes; is it a mix?")
        return MixDocument.model_validate(tomllib.loads(data.decode()))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        found = error.errors(include_url=False)
        lines = [f"{path}: {_place(each['loc'])}: {_fix(each)}" for each in found[:5]]
        more = [f"... and {len(found) - 5} more"] if len(found) > 5 else []
        raise InputError("\n".join(lines + more)) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not TOML: {error}") from error


def _place(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc if part != "[key]") or "the file"


def _fix(error: Any) -> str:
    """What is wrong and what would be right."""
    kind, where = error["type"], ".".join(map(str, error["loc"][:-1]))
    if kind == "extra_forbidden":
        known = sorted(_model_at(error["loc"][:-1]).model_fields)
        hint = ""
        if where.startswith("sources") or not where:
            hint = "; flags of the producer belong below flags"
        return f"is no setting here; there are {', '.join(known)}{hint}"
    if kind == "missing":
        needed = {"producer": 'producer = "gsm8k"', "name": 'name = "my-mix"'}
        needed["sources"] = "a table [sources.NAME] for each source"
        return f"is missing: add {needed.get(str(error['loc'][-1]), 'it')}"
    if kind == "string_pattern_mismatch":
        return "use letters, digits, - and _ (a mix: dots, too), and begin with no sign"
    return str(error["msg"]).removeprefix("Value error, ")


def _model_at(loc: tuple[int | str, ...]) -> type[BaseModel]:
    if len(loc) >= 2 and loc[0] == "sources":
        of_source: dict[str, type[BaseModel]] = {"quota": Quota, "sampler": InOrder}
        return of_source.get(str(loc[2]) if len(loc) > 2 else "", SourceTable)
    of_mix: dict[str, type[BaseModel]] = {
        "backlog": Backlog,
        "budgets": Budgets,
        "slots": PartOfSlots,
    }
    return of_mix.get(str(loc[0]) if loc else "", MixDocument)
