"""The contract of a task environment: item, prompt, setup, verification. Nothing about queues.

An env is one object, `ENV` in a separate module (docs/extensions.md). It is stateless: the item and
the slot hold all state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel

from hermes_queue import extensions
from hermes_queue.errors import ModelConfigError
from hermes_queue.models import JudgeSpec, Message, ScoredTrajectory, ToolCall
from hermes_queue.sandbox.base import AssetSpec, SlotSpec
from hermes_queue.sandbox.context import SlotContext

ItemT = TypeVar("ItemT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of `verify`, which either returns one or raises; there is no "unknown"."""

    score: float | None
    """The task's own measure, usually 0.0 or 1.0. None in an `Unscored` env alone."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Optional shaping terms; never added to `score`."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """JSON-serialisable explanation: reason, outcome of each test, dropped changes, ..."""
    trainable: bool = True
    """False: nothing may be trained on the trajectory, whatever its score. The record is marked as
    one of an evaluation."""


class Environment(Protocol[ItemT]):
    """The rules of one dataset."""

    name: ClassVar[str]
    version: ClassVar[str]
    """Must change whenever the same answer could get another score."""
    tools: ClassVar[Sequence[str]]
    """Names of tools: those in `hermes_queue.tools`, `package.module:TOOL`, or of plugins."""
    Item: type[ItemT]
    """Validates one dataset row. Must have a field or property `instance_id: str`."""

    def prompt(self, item: ItemT) -> list[Message]:
        """The beginning of the agent's conversation. Must not disclose the tests that grade."""

    def spec(self, item: ItemT, profile: str) -> SlotSpec:
        """The slot for this item: Python, assets, and the job's `profile`, to be passed on.

        Producers call it, too, to learn which items need the same.
        """

    async def setup(self, item: ItemT, context: SlotContext) -> None:
        """Prepare the empty workspace.

        What it leaves must be in the slot: a trajectory that loses its worker is verified in
        another process, where `setup` was not called for it.

        Raises:
            EnvInfraError: a clone or download failed (retried).
            EnvBug: the row does not fit its source (not retried).
        """

    async def verify(
        self, item: ItemT, context: SlotContext, transcript: Sequence[Message]
    ) -> Verdict:
        """Measure the state in which the agent left the slot. May call `context.renew()`.

        Raises:
            SandboxError: nothing could be measured (retried, never a score).
        """

    async def oracle(self, item: ItemT, context: SlotContext) -> list[ToolCall]:
        """The gold answer as tool calls, and/or as a final message (`oracle_answer`).

        Running the calls through the tools and verifying must score 1.0 on every shipped row.
        """

    def oracle_answer(self, item: ItemT) -> str:
        """The oracle's final message."""

    def tamper(self, item: ItemT) -> Mapping[str, Sequence[ToolCall | str]]:
        """Ways to cheat the verifier, by name; each must score 0.0. May be empty.

        A string is sent as a message without tool calls, so only the last step may be a string.
        """


@runtime_checkable
class Unscored(Protocol):
    """An env without a verifier, whose trajectories have no score by design.

    Its verdicts have the score None; the records are `unscored`, not failed, and no training data
    for reinforcement learning.
    """

    unscored: ClassVar[Literal[True]]


@runtime_checkable
class DescribesTask(Protocol):
    """An env that says its task to a program with tools of its own (`--agent command`).

    Optional: without it, `task_of` makes the text from `prompt`, and an env with tools of its own
    is refused.
    """

    def task(self, item: Any) -> str:
        """The task in one text that names no tool of ours. Must not disclose the tests that grade.

        If the answer is not in the workspace, the text says that the last message holds it.
        """


@runtime_checkable
class HasSteps(Protocol):
    """An env whose items may be several instructions, one after the other, in the same slot.

    Optional. Each step is an item of its own, which all other methods get: `spec` and `setup` that
    of the first one, `prompt` what the conversation begins with and then what follows in it,
    `verify` what this step alone is worth. What `begin_step` needs of an earlier step, its `verify`
    keeps in the slot's context.
    """

    def steps(self, item: Any) -> Sequence[Any]:
        """The items of the steps, in order; the item itself if there is only one."""

    def step_limit_s(self, item: Any) -> float | None:
        """Seconds of the agent in this step; None = as many as the trajectory has left."""

    def goes_on(self, item: Any, verdict: Verdict) -> bool:
        """Whether the next step may begin after this verdict of the one before, `item`."""

    async def begin_step(self, item: Any, context: SlotContext) -> Verdict | None:
        """Prepare the slot, which the step before has left and `verify` has used, for a later one.

        Returns the verdict of a step that cannot begin by the agent's doing, which ends the task.

        Raises the same as `setup`.
        """

    def total(self, items: Sequence[Any], verdicts: Sequence[Verdict]) -> Verdict:
        """The verdict of the trajectory; the steps after `verdicts` were not reached."""


class NotRecorded(Exception):
    """A record does not hold what `verify` needs of the agent's work; the text says what."""


@runtime_checkable
class Regradable(Protocol):
    """An env whose records hold the agent's work, so that today's `verify` can measure it again.

    Optional. `setup`, `put_back` and `verify` then run in a fresh slot, without an agent.
    """

    def outcome(self, record: ScoredTrajectory) -> Mapping[str, Any]:
        """The agent's work in a measured record, as JSON. The record may be anybody's.

        Raises:
            NotRecorded: the record does not hold all of it.
        """

    async def put_back(self, item: Any, context: SlotContext, outcome: Mapping[str, Any]) -> str:
        """Bring a slot from after `setup` to where the agent left it; returns its last message.

        Raises:
            EnvBug: `outcome` is not one, or does not fit the item as it is today.
            SandboxError: the slot could not take it (retried, never a score).
        """


@runtime_checkable
class TakesWork(Protocol):
    """An env that can take the agent's work out of its slot, and measure it in another one.

    Optional. `verify` must then do the same as `take_work` followed by `measure_work`. It allows
    another worker to grade what was taken, in a fresh slot in which `setup` has not run. For an env
    without it, that worker gets a copy of all of the slot's files.
    """

    async def take_work(
        self, item: Any, context: SlotContext, transcript: Sequence[Message]
    ) -> bytes:
        """All that `verify` would look at. What the agent's processes do later must not matter.

        The slot must have the spec that it had before: `measure_work` may be called in it.

        Raises the same as `verify`.
        """

    async def measure_work(self, item: Any, context: SlotContext, work: bytes) -> Verdict:
        """The verdict on work that this version of the env took. Raises the same as `verify`."""


@runtime_checkable
class NamesJudge(Protocol):
    """An env whose trajectories a model judges where the job names no judge. Optional."""

    def judge(self, item: Any) -> JudgeSpec | None:
        """Who judges, and by which question; None = nobody."""


@runtime_checkable
class ScoresByJudge(Protocol):
    """An env in whose score a judge has a part. Optional; of all others it has none."""

    def score_by_judge(self, item: Any, verdict: Verdict, judged: float | None) -> Verdict:
        """The verdict of the trajectory; `judged` is from 0 to 1 and is in its rewards.

        None: three answers of the judge were unusable, or the transcript did not fit it. An agent
        can bring that about, so it must not get more than for a bad judgement. A failure of the
        judge's endpoint fails the attempt, and the method is not called.
        """


def steps_of(env: Environment[Any], item: Any) -> Sequence[Any]:
    """The items of the steps; the item itself for most envs. Raises the same as `steps`."""
    return (env.steps(item) or (item,)) if extensions.offers(env, HasSteps) else (item,)


@runtime_checkable
class LoadsItem(Protocol):
    """An env whose items name something that has to be on the worker's host first.

    Optional. Producers do not call it: there, only `Item`, `tamper` and, for programs, `spec` and
    `task` are used, which must do without.
    """

    async def load(self, item: Any) -> Any:
        """The item with what it names, for all other methods. Blocks no event loop.

        Raises:
            EnvBug: it names something that is not there or is not what it should be.
            EnvInfraError: it could not be fetched.
        """


async def load_item(env: Environment[Any], row: Mapping[str, Any]) -> Any:
    """The item of a row, loaded if the env does that. Raises the same as `LoadsItem.load`."""
    item = env.Item.model_validate(row)
    return await env.load(item) if extensions.offers(env, LoadsItem) else item


def needs_of(env: Environment[Any], item: Any, profile: str) -> str:
    """The `TrajectoryJob.needs` of an item: equal for items with equal image and assets.

    "" if its slot has none. What has to be loaded first is taken to be each item's own.
    """
    try:
        if extensions.offers(env, LoadsItem):
            made_of: object = (env.name, item)
        else:
            spec = env.spec(item, profile)
            made_of = (spec.image, [(asset.kind, asset.key) for asset in spec.assets])
            if made_of == (None, []):
                return ""
        return hashlib.sha256(repr(made_of).encode(errors="replace")).hexdigest()[:8]
    except (Exception, SystemExit):  # noqa: BLE001 - the env's code; a worker reports what is wrong
        return ""


ReadAsset = Callable[[AssetSpec, str], Awaitable[bytes]]
"""Builds an asset if necessary and reads one of its files."""


@runtime_checkable
class PreparesAhead(Protocol):
    """An env whose `setup` makes things on the worker that later jobs of the host use too.

    Optional. A worker whose slots are all busy calls it for a job that still waits. Whatever it
    raises is logged, and the job's own `setup` does the same again.
    """

    async def prepare_ahead(self, item: Any, read_asset: ReadAsset) -> None:
        """Fetch or make what `setup` needs beside the slot: clones, downloads.

        The assets of `spec` are there already. It must be safe beside the `setup` of the same
        item, and beside itself.
        """


def task_of(env: Environment[Any], item: Any) -> str:
    """The task as a program is given it: `task`, else what the prompt says before any reply."""
    if extensions.offers(env, DescribesTask):
        return env.task(item)
    texts = []
    for message in env.prompt(item):
        if message.role == "assistant":
            break
        texts.append((message.content or "").strip())
    return "\n\n".join(filter(None, texts))


def check_program_env(env: Environment[Any]) -> None:
    """Refuse an env whose tools a program cannot call, unless it has a `task` for programs.

    Raises:
        ModelConfigError: names the tool and the fix.
    """
    if extensions.offers(env, DescribesTask):
        return
    bundled = extensions.own("tool")
    if foreign := next((name for name in env.tools if name not in bundled), None):
        raise ModelConfigError(
            f"env {env.name}: its tool {foreign!r} cannot be called by a program in the slot; if "
            "the task can be done without it, give the env a method `task(item) -> str` that says "
            "so, else run it with another --agent"
        )


def load_env(name: str) -> Environment[Any]:
    """The env called `name`: `envs.<name>`, `package.module:ENV`, or that of a plugin.

    Raises:
        ConfigurationError: see `hermes_queue.extensions.load`.
    """
    env: Environment[Any] = extensions.load("env", name)
    return env
