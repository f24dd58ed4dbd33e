"""Groups into a training client of Tinker's SDK, and of the servers that speak its protocol.

What survives is a state that the server has saved and whose path stands in a file beside the
journal: a trainer goes on from there, and groups of later steps are trained again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hermes_plugins.trainers.versions import check
from hermes_queue.disk.locked import replacing
from hermes_queue.errors import ConfigurationError, RedisUnavailable
from hermes_queue.models import TrajectoryGroup
from hermes_queue.results.blocking import HeldGroup
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.rows import Advantage, Row, rows_of
from hermes_queue.trainers.sources.policy import announce

logger = logging.getLogger(__name__)

FILE_NAME = "hermes_queue.tinker"
_TAKE_S = 1.0  # in a thread, whose wait no cancellation ends
OnStep = Callable[[int, list[HeldGroup], Any], None]
"""Step, its groups, and the server's `ForwardBackwardOutput`."""
OnWeights = Callable[[str, int], Awaitable[None]]
"""Path and policy version of new weights; on return they are live for workers."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """Weights and optimizer as the server saved them after a step."""

    step: int
    path: str


def newest_state(directory: Path | str) -> SavedState | None:
    """The state that a training with this journal's directory saved last; None at its beginning.

    Raises:
        ConfigurationError: the file that names it is damaged.
    """
    path = Path(directory) / FILE_NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return SavedState(int(found["step"]), str(found["path"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"{path}: names no saved state: {error!r}") from error


def datums(given: Iterable[Row | TrajectoryGroup], **options: Any) -> list[Any]:
    """A `tinker.Datum` for each row, of groups with `options` as for `rows_of`.

    Context has advantage 0, which is how Tinker's losses leave it out.

    Raises:
        RowRefused: a group is unfit.
        ValueError: a row without an advantage.
    """
    import tinker

    made = []
    for each in given:
        for row in [each] if isinstance(each, Row) else rows_of(each, **options):
            if row.advantage is None:
                raise ValueError(f"{row.trajectory_id}: Tinker needs rows with advantages")
            inputs = {
                "target_tokens": list(row.ids[1:]),
                "logprobs": list(row.logprobs[1:]),
                "advantages": [row.advantage * trained for trained in row.mask[1:]],
            }
            context = tinker.ModelInput.from_ints(list(row.ids[:-1]))
            made.append(tinker.Datum(model_input=context, loss_fn_inputs=inputs))
    return made


async def train(
    feed: Feed,
    client: Any,
    *,
    resumed: SavedState | None,
    steps: int,
    groups_per_step: int,
    optimizer: Any = None,
    loss_fn: str = "importance_sampling",
    loss_fn_config: Mapping[str, float | str] | None = None,
    save_every: int = 10,
    advantage: Advantage = "mean",
    patience_s: float | None = None,
    on_step: OnStep | None = None,
    on_weights: OnWeights | None = None,
) -> int:
    """Train until step `steps`, counted from the first process on, and save the state at the end.

    `client` is a `tinker.TrainingClient` made from `resumed.path` with its optimizer, or a new one
    if `newest_state` returned None. `optimizer` is `tinker.AdamParams` or the like. Without a batch
    for `patience_s` it ends earlier. Groups that are unfit or were not sampled at temperature 1, at
    which Tinker recomputes logprobs, become dead letters. If a request fails, so does the training:
    go on with a client from the newest state. Returns the last step.
    """
    check("tinker")
    from tinker import AdamParams

    params = optimizer or AdamParams()
    fit = partial(rows_of, advantage=advantage, temperature=1.0)
    feed.require(fit, temperature=1.0)
    step = saved = resumed.step if resumed else 0
    await asyncio.to_thread(feed.resume, resumed.step if resumed else None)
    while step < steps and (groups := await _take(feed, groups_per_step, patience_s)):
        rows = [row for group in groups for row in fit(group)]
        step += 1
        # Both are sent before the first is awaited: no other request comes in between.
        gradients = client.forward_backward(datums(rows), loss_fn, loss_fn_config)
        update = client.optim_step(params)
        answer, _ = await gradients, await update
        await asyncio.to_thread(feed.trained, step, groups)
        if on_step is not None:
            on_step(step, groups, answer)
        await _publish(feed, client, step, on_weights)
        if step % save_every == 0:
            saved = await _save(feed, client, step)
    return step if saved == step else await _save(feed, client, step)


async def _take(feed: Feed, count: int, patience_s: float | None) -> list[HeldGroup]:
    until = math.inf if patience_s is None else time.monotonic() + patience_s
    while not (taken := await asyncio.to_thread(feed.take, count, timeout_s=_TAKE_S)):
        if time.monotonic() >= until:
            break
    return taken


async def _publish(feed: Feed, client: Any, step: int, on_weights: OnWeights | None) -> None:
    # Workers read the version from the path, so it is named by the run's, not by the step.
    while True:
        try:
            version = await asyncio.to_thread(feed.numbered, step)
            break
        except RedisUnavailable as error:
            logger.warning("waiting for Redis: %s", error, extra={"action": "redis_wait"})
            await asyncio.sleep(_TAKE_S)
    weights = await client.save_weights_for_sampler(f"step-{version}")
    if on_weights is not None:
        await on_weights(weights.path, version)
    await asyncio.to_thread(announce, feed.published, step)


async def _save(feed: Feed, client: Any, step: int) -> int:
    state = await client.save_state(f"step-{step}")
    with replacing(feed.options.directory / FILE_NAME) as draft:
        draft.write_text(json.dumps({"step": step, "path": state.path}), encoding="utf-8")
    await asyncio.to_thread(feed.saved, step)
    return step
