"""A rollout workflow of AReaL whose episodes are finished groups."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hermes_plugins.trainers.versions import check
from hermes_queue.models import TrajectoryGroup
from hermes_queue.policy import version_number
from hermes_queue.results.blocking import HeldGroup
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.rows import Row, rows_of

_TAKE_S = 1.0
"""Longest time for which `trained` and `saved` wait for an episode that waits for a group."""
GROUP = "queue_group"
"""Key of the number of each row's group, by which a batch says what it holds."""


class QueueWorkflow:
    """The groups of a feed as episodes, for AReaL's `prepare_batch` with `group_size=1`.

    An episode is a whole group with a row for each trajectory, its longest token sequence, since
    AReaL normalises rewards by position: `reward_norm.group_size` is that of the feed. It runs in
    the process that has the feed, which is used through this object from then on.

    Args:
        feed: resumed already. Groups without such rows become dead letters.
    """

    def __init__(self, feed: Feed) -> None:
        check("areal")
        from areal.api.workflow_api import RolloutWorkflow

        RolloutWorkflow.register(type(self))
        feed.require(_rows)
        self.feed = feed
        self._lock = threading.Lock()
        self._turn = asyncio.Lock()
        self._ready: deque[HeldGroup] = deque()
        self._out: dict[int, HeldGroup] = {}
        self._numbers = 0
        self._offset: int | None = None
        """The run's policy version less AReaL's."""

    async def arun_episode(self, engine: Any, data: Mapping[str, Any]) -> dict[str, Any]:
        """The rows of the next group, whatever `data` asks for. AReaL may cancel it at any time."""
        async with self._turn:
            if self._offset is None:
                await asyncio.to_thread(self.published, engine.get_version())
            while not self._ready:
                await asyncio.to_thread(self._fill)
            group = self._ready.popleft()
            self._numbers += 1
            number = self._numbers
            self._out[number] = group
        live = engine.get_version()
        return tensors(group, number=number, unknown=live, offset=self._offset or 0)

    def trained(self, step: int, batch: Iterable[Mapping[str, Any]]) -> None:
        """Report the batch of an optimiser step, before its checkpoint is begun. See `Feed`."""
        numbers = sorted({int(number) for each in batch for number in each[GROUP].tolist()})
        with self._lock:
            self.feed.trained(step, [self._out[number] for number in numbers])
        for number in numbers:
            del self._out[number]

    def saved(self, step: int) -> None:
        """Report that the checkpoint of a step is durable. See `Feed`."""
        with self._lock:
            self.feed.saved(step)

    def published(self, version: int) -> int:
        """Report that new weights are live, of AReaL's version. See `Feed`.

        The first episode does so with the version that the engine has by then.
        """
        with self._lock:
            now = self.feed.published(version)
            self._offset = now - version
            return now

    def _fill(self) -> None:
        # Into a queue of its own, so that a cancelled episode leaves its group to the next one.
        with self._lock:
            taken = self.feed.take(1, timeout_s=_TAKE_S)
            for group in taken:
                self.feed.note_longest(group)
            self._ready += taken


def tensors(
    group: TrajectoryGroup, *, number: int = 0, unknown: int = 0, offset: int = 0
) -> dict[str, Any]:
    """A group as AReaL's dict of tensors, a row for each trajectory, padded at the end.

    `versions` has the policy version that sampled each trained token, or the oldest one of its row
    if that is not known, less `offset`; `unknown` where nobody knows any, and -1 on context. AReaL
    makes the advantages.

    Raises:
        RowRefused: the group is unfit.
    """
    import torch

    rows = _rows(group)
    width = max(len(row.ids) for row in rows)

    def padded(values: Iterable[Sequence[float]], padding: float, kind: Any) -> Any:
        filled = [[*each, *[padding] * (width - len(each))] for each in values]
        return torch.tensor(filled, dtype=kind)

    return {
        "input_ids": padded([row.ids for row in rows], 0, torch.int32),
        "loss_mask": padded([row.mask for row in rows], 0, torch.int32),
        "logprobs": padded([row.logprobs for row in rows], 0.0, torch.float32),
        "versions": padded([_versions(row, unknown, offset) for row in rows], -1, torch.int32),
        "attention_mask": padded([[1] * len(row.ids) for row in rows], 0, torch.bool),
        "rewards": torch.tensor([row.score for row in rows], dtype=torch.float32),
        GROUP: torch.full((len(rows),), number, dtype=torch.int32),
    }


def _rows(group: TrajectoryGroup) -> tuple[Row, ...]:
    return rows_of(group, sequences="longest", advantage=None)


def _versions(row: Row, unknown: int, offset: int) -> list[int]:
    def numbered(version: int | None) -> int:
        # Below 0 AReaL sees context; versions before its own first one are as old as that.
        return unknown if version is None else max(0, version - offset)

    versions = [numbered(row.version) if trained else -1 for trained in row.mask]
    for begin, end, name in row.spans:
        if (version := version_number(name)) is not None:
            versions[begin:end] = [numbered(version)] * (end - begin)
    return versions
