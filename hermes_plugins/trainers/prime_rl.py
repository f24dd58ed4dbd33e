"""prime-rl: `python -m hermes_plugins.trainers.prime_rl` in the place of its orchestrator.

The trainer reads the batch of a step from a file that stays, so a batch is final once its file is
in place: the journal has its groups before that. A trainer that goes back reads the same files.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import logging
import shlex
import subprocess
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from hermes_plugins.trainers.versions import check
from hermes_queue.disk import durable
from hermes_queue.models import TrajectoryGroup
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.rows import Row, rows_of
from hermes_queue.trainers.sources.policy import announce

logger = logging.getLogger(__name__)

_LAG = 2
"""A batch is written when the weights of the step before the last one are live."""
_POLL_S = 0.5


def main(arguments: list[str] | None = None) -> None:
    """Write the batches of a run, as the options say, until the last step is saved.

    Raises:
        ConfigurationError: prime-rl is of another version, or as `Feed`.
        subprocess.CalledProcessError: the command that loads weights failed.
    """
    given = _options().parse_args(arguments)
    check("prime_rl")
    limits = {"max_tokens": given.seq_len, "temperature": given.temperature}
    fit = partial(rows_of, advantage=given.advantage, **limits)
    names = ("run", "group_size", "max_lag", "window", "env", "url")
    options = {name: getattr(given, name) for name in (*names, "temperature")}
    with Feed(given.name, directory=given.run_dir, check=fit, **options) as feed:
        _Orchestrator(feed, given).run()


class _Orchestrator:
    """Files of the run's directory, and the feed."""

    def __init__(self, feed: Feed, given: argparse.Namespace) -> None:
        self.feed, self.given = feed, given
        self.live = self.saved = -1
        """Newest weights in the servers, and newest checkpoint."""

    def run(self) -> None:
        given, saved = self.given, self._newest("checkpoints", "trainer/.metadata")
        step = max(0, saved)
        while self._batch(step + 1).exists():
            step += 1
        self.feed.resume(saved if saved > 0 else None, kept=step)
        while not given.max_steps or self.saved < given.max_steps:
            self._look()
            ready = self.live >= step + 1 - _LAG and step != given.max_steps
            groups = self.feed.take(given.groups_per_step, timeout_s=_POLL_S) if ready else []
            if groups:
                step += 1
                self.feed.trained(step, groups)
                self._write(step, groups)
            elif not ready:
                time.sleep(_POLL_S)

    def _look(self) -> None:
        """Report weights and checkpoints that the trainer has completed since."""
        live = self._newest("broadcasts", "STABLE")
        if live > self.live and self.given.load_weights:
            weights = self.given.run_dir / "broadcasts" / f"step_{live}"
            subprocess.run([*shlex.split(self.given.load_weights), str(weights)], check=True)  # noqa: S603
            if live != self.feed.version:  # else only this process was started again
                announce(self.feed.published, live)
        self.live = max(self.live, live)
        if (saved := self._newest("checkpoints", "trainer/.metadata")) > self.saved:
            self.saved = saved
            self.feed.saved(saved)

    def _newest(self, folder: str, mark: str) -> int:
        """The newest step that has a mark of completeness; -1 if there is none."""
        found = (self.given.run_dir / folder).glob(f"step_*/{mark}")
        names = (path.relative_to(self.given.run_dir / folder).parts[0] for path in found)
        steps = (name.removeprefix("step_") for name in names)
        return max((int(step) for step in steps if step.isdigit()), default=-1)

    def _batch(self, step: int) -> Path:
        path: Path = self.given.run_dir / "rollouts" / f"step_{step}"
        return path

    def _write(self, step: int, groups: list[Any]) -> None:
        """Put the files of all ranks in place at once, durably."""
        given, batch = self.given, import_module("prime_rl.trainer.batch")
        samples = [sample for group in groups for sample in self._samples(group)]
        cost = batch.build_bin_cost(None)
        grid = batch.prepare_batch(samples, given.seq_len, given.ranks, cost, given.pad_to)
        draft = given.run_dir / "hermes_queue.draft"
        sender = import_module("prime_rl.transports.rollouts").FileSystemMicroBatchSender
        if inspect.isawaitable(sent := sender(draft, given.ranks, step).send(grid)):
            asyncio.run(_finished(sent))
        written = draft / "rollouts" / f"step_{step}"
        durable.sync_tree(written)
        self._batch(step).parent.mkdir(exist_ok=True)
        written.rename(self._batch(step))
        durable.sync_directory(self._batch(step).parent)

    def _samples(self, group: TrajectoryGroup) -> list[Any]:
        types, given = import_module("prime_rl.transports.rollouts"), self.given
        fit: dict[str, Any] = {"advantage": given.advantage, "max_tokens": given.seq_len}
        return [_sample(types, row, group.env, given.temperature) for row in rows_of(group, **fit)]


def _sample(types: Any, row: Row, env: str, temperature: float) -> Any:
    return types.TrainingSample(
        token_ids=list(row.ids),
        mask=[bool(trained) for trained in row.mask],
        logprobs=list(row.logprobs),
        temperatures=[temperature] * len(row.ids),
        env_name=env,
        advantages=[(row.advantage or 0.0) * trained for trained in row.mask],
    )


async def _finished(sent: Any) -> None:
    await sent


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {__name__}", description=main.__doc__)
    for name in ("run", "run-dir", "groups-per-step", "group-size", "seq-len"):
        kind = {"run": str, "run-dir": Path}.get(name, int)
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--name", default="prime-rl", help="of the consumer group")
    parser.add_argument("--ranks", type=int, default=1, help="data-parallel ranks of the trainer")
    parser.add_argument("--pad-to", type=int, default=1, help="multiple of tokens in a micro-batch")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--advantage", choices=("mean", "std"), default="mean")
    parser.add_argument("--load-weights", help="command that loads weights into the servers")
    parser.add_argument("--max-steps", type=int, help="the trainer's")
    for name, kind in (("max-lag", int), ("window", int), ("env", str), ("url", str)):
        parser.add_argument(f"--{name}", type=kind, default=0 if name == "window" else None)
    return parser


if __name__ == "__main__":
    main()
