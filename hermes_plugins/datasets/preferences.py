"""Pairs of a better and a worse trajectory of one group, for DPO and its relatives.

A row is a preference in the conversational form of TRL's `DPOTrainer`: `prompt`, `chosen` and
`rejected` are lists of messages, and `tools` is JSON text, which keeps the schemas of different
tools out of one another's columns. Arguments of calls are objects, as chat templates expect.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

from pydantic import Field

from hermes_plugins.datasets.openai import conversation
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import Message, ScoredTrajectory
from hermes_queue.sinks.base import Format, RowChoice, SinkOptions
from hermes_queue.sinks.datasets.lines import DatasetRow, LinesSink, NotRepresentable, line
from hermes_queue.sinks.selection import tampered


class PairOptions(SinkOptions):
    """Options of `preferences`."""

    min_gap: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="preferences: least difference between the scores of a pair; 0 = any "
        "difference.",
    )
    pairs_per_group: int = Field(
        default=1, ge=1, description="preferences: at most this many pairs of one group."
    )
    reuse_members: bool = Field(
        default=False,
        description="preferences: let a trajectory be in several pairs of its group.",
    )


@dataclass(frozen=True, slots=True)
class _Member:
    record: ScoredTrajectory
    score: float
    prompt: list[dict[str, Any]]
    """The messages before the first one of the assistant."""
    completion: list[dict[str, Any]]
    tools: str
    asked: bytes
    """Digest of prompt and tools."""
    answered: bytes
    """Digest of the completion without the ids of calls, which are chance."""

    @property
    def key(self) -> tuple[float, int]:
        """Its place, the best one first; of equal ones the earlier sample."""
        return -self.score, self.record.sample_index


_Pair = tuple[_Member, _Member]

_ROUNDING = 1e-9
"""Tolerance for a gap such as 0.3 - 0.2, which is a little less than 0.1."""


class PreferencesSink(LinesSink):
    """Appends the pairs of each group to `path` (`*.jsonl`). See `LinesSink`.

    The pairs of a group are written together, once: a group that has some gets no more, whatever
    the options of a later start. `held` are the trajectories in pairs.
    """

    def __init__(self, path: Path, options: PairOptions | None = None) -> None:
        self._options = options or PairOptions()
        self._paired: set[str] = set()
        """Groups that have rows."""
        self._lines: dict[str, tuple[bytes, dict[str, str]]] = {}
        """By group, lines that `left_over` made and `write` has not received yet, and the instances
        of the trajectories in them."""
        super().__init__(path, lambda _: (), kind="preferences")  # rows are made from groups

    def write(self, trajectories: Iterable[ScoredTrajectory]) -> int:
        """See `Sink.write`. All members of a group are in one call."""
        groups: dict[str, list[ScoredTrajectory]] = defaultdict(list)
        for trajectory in trajectories:
            groups[trajectory.group_id].append(trajectory)
        made = {
            group_id: self._lines.get(group_id) or self._made(members)
            for group_id, members in groups.items()
            if group_id not in self._paired
        }
        self._lines.clear()
        used = [group_id for group_id, (data, _) in made.items() if data]
        members = {name: at for _, held in made.values() for name, at in held.items()}
        count = self._append(b"".join(made[group][0] for group in used), members, groups=used)
        self._paired.update(used)
        return count

    def refusal(self, trajectory: ScoredTrajectory) -> str:
        """The reason why the trajectory can be in no pair; "" if it can."""
        try:
            _usable(trajectory)
        except NotRepresentable as reason:
            return str(reason)
        return ""

    def left_over(self, members: Sequence[ScoredTrajectory]) -> Mapping[str, str]:
        """The reason for each of these members of a group that is in no pair."""
        group_id = members[0].group_id
        if group_id in self._paired:
            return {member.trajectory_id: "group has its pairs" for member in members}
        data, used = self._lines[group_id] = self._made(members)
        if not data:
            del self._lines[group_id]
        return {m.trajectory_id: "no pair" for m in members if m.trajectory_id not in used}

    def _made(self, members: Iterable[ScoredTrajectory]) -> tuple[bytes, dict[str, str]]:
        found = pairs(members, self._options)
        records = [each.record for pair in found for each in pair]
        used = {record.trajectory_id: record.instance_id for record in records}
        return b"".join(line(_row(*pair)) for pair in found), used

    def _recall(self, entry: Mapping[str, Any]) -> None:
        super()._recall(entry)
        self._paired.update(entry["groups"])


def pairs(members: Iterable[ScoredTrajectory], options: PairOptions) -> list[_Pair]:
    """The pairs (chosen, rejected) of one group's members, those of the largest gap first.

    The better one of a pair was not seen getting around the grading. Both have the same prompt and
    tools, and not the same completion. Members that can be in no pair are passed over. The result
    depends on the members and the options alone.
    """
    ranked = sorted(_usable_ones(members), key=lambda member: member.key)
    clean = [member for member in ranked if not tampered(member.record)]
    both = [pair for pair in product(clean, ranked) if _is_pair(*pair, options.min_gap)]
    both.sort(key=lambda pair: (pair[1].score - pair[0].score, pair[0].key, pair[1].key))
    found = both if options.reuse_members else _each_once(both)
    return list(islice(found, options.pairs_per_group))


def _is_pair(better: _Member, worse: _Member, min_gap: float) -> bool:
    gap = better.score - worse.score
    return (
        gap > 0
        and gap >= min_gap - _ROUNDING
        and better.asked == worse.asked
        and better.answered != worse.answered
    )


def _each_once(found: Iterable[_Pair]) -> Iterator[_Pair]:
    uses: Counter[str] = Counter()
    for pair in found:
        names = [each.record.trajectory_id for each in pair]
        if not any(uses[name] for name in names):
            uses.update(names)
            yield pair


def _usable_ones(trajectories: Iterable[ScoredTrajectory]) -> Iterator[_Member]:
    for trajectory in trajectories:
        with suppress(NotRepresentable):
            yield _usable(trajectory)


def _usable(trajectory: ScoredTrajectory) -> _Member:
    """What the trajectory has for a pair; raises `NotRepresentable`."""
    if trajectory.evaluation:
        raise NotRepresentable("of an evaluation")
    if trajectory.score is None:
        raise NotRepresentable("no score")
    messages = conversation(trajectory)
    first = next(n for n, message in enumerate(messages) if message.role == "assistant")
    if not any(message.role == "user" for message in messages[:first]):
        raise NotRepresentable("no user message before the first reply")
    chat = [_templated(message) for message in messages]
    tools = json.dumps(list(trajectory.tools), sort_keys=True)
    prompt, completion = chat[:first], chat[first:]
    return _Member(
        trajectory,
        trajectory.score,
        prompt,
        completion,
        tools,
        asked=_digest({"prompt": prompt, "tools": tools}),
        answered=_digest({"completion": [_without_ids(message) for message in completion]}),
    )


def _digest(content: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(line(content)).digest()


def _without_ids(message: Mapping[str, Any]) -> list[Any]:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return [message["role"], message["content"], calls]


def _templated(message: Message) -> dict[str, Any]:
    """The message for a chat template: content is text, arguments are objects."""
    chat = message.to_openai()
    chat["content"] = chat["content"] or ""
    for call in chat.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return chat


def _row(better: _Member, worse: _Member) -> DatasetRow:
    one = better.record
    return {
        "prompt": better.prompt,
        "chosen": better.completion,
        "rejected": worse.completion,
        "tools": better.tools,
        "score_chosen": better.score,
        "score_rejected": worse.score,
        "chosen_id": one.trajectory_id,
        "rejected_id": worse.record.trajectory_id,
        "group_id": one.group_id,
        "run_id": one.run_id,
        "env": one.env,
        "instance_id": one.instance_id,
    }


def _open(out: Path, options: PairOptions, choice: RowChoice) -> PreferencesSink:
    if "max_per_instance" in choice.filters:
        raise ConfigurationError(
            "--max-per-instance takes the first trajectories of a group, of which no pair need be "
            "made: bound the pairs with --pairs-per-group"
        )
    return PreferencesSink(out, options)


FORMAT = Format(
    help="Pairs of a better and a worse trajectory of one group, in the conversational form of "
    "TRL's DPOTrainer, in the JSON-lines file OUT.",
    open=_open,
    options=PairOptions,
)
