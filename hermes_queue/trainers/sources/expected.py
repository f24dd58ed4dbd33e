"""Whether a run is what its trainer takes it for, by what was recorded when it was enqueued.

Otherwise each of its groups would be refused one by one, or never come, without an error.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from typing import Any

from hermes_queue.errors import ConfigurationError, RedisUnavailable
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.ledger.runs import RunInfo, Runs
from hermes_queue.trainers.rows import same_parameter
from hermes_queue.trainers.sources.options import FeedCounts, FeedOptions

logger = logging.getLogger(__name__)

_TELL_S = 60.0
"""Time of waiting after which the log says what for."""
_RUNS = 500
"""Newest runs among which a mistyped one is looked for."""


class ExpectedRun:
    """The run of a feed, as its trainer expects it.

    Args:
        options: of the feed.
        counts: of the feed, for what it says while it waits.
    """

    def __init__(self, ledger: Ledger, options: FeedOptions, counts: FeedCounts) -> None:
        self._runs = Runs(ledger)
        self._options = options
        self._counts = counts
        self._is_known = False
        self._waited_s = 0.0
        self._tell_at_s = _TELL_S

    def check(self, *, temperature: float | None, needs_tokens: bool) -> None:
        """Compare the run with what its trainer needs; what nobody recorded is taken to be right.

        Without an answer of Redis it is done by the next `check_once`.

        Args:
            temperature: at which the trainer recomputes logprobs; None = unknown.
            needs_tokens: whether groups without token ids are refused.

        Raises:
            ConfigurationError: all of its groups would be refused.
        """
        self._is_known = False
        try:
            info = self._info()
        except RedisUnavailable as error:
            logger.warning("run not checked: %s", error, extra={"action": "redis_wait"})
            return
        if info is None:
            return
        self._is_known = True
        name, config = f"run {info.run_id!r}", info.config
        size = config.get("group_size", 0)
        if size is None and config.get("agent") != "tamper":
            size = 1  # a producer that was given none
        if size and size != self._options.group_size:
            raise ConfigurationError(
                f"{name} has groups of {size}, and the trainer takes groups of "
                f"{self._options.group_size}: set group_size={size}, or enqueue another run"
            )
        used = (config.get("sampling") or {}).get("temperature")
        if None not in (used, temperature) and not same_parameter(used, temperature or 0.0):
            raise ConfigurationError(
                f"{name} is sampled at temperature {str(used)[:50]}, and the trainer recomputes "
                f"logprobs at {temperature:g}: let both be the same"
            )
        if needs_tokens and _lacks_tokens(config):
            raise ConfigurationError(
                f"{name} is sampled without token ids, which the trainer needs: enqueue a run with "
                "the agent parameter token_ids=true, or mode=tokens (docs/tokens.md)"
            )

    def check_once(self, *, temperature: float | None, needs_tokens: bool) -> None:
        """As `check`, unless the run was known at the last call."""
        if not self._is_known:
            self.check(temperature=temperature, needs_tokens=needs_tokens)

    def note_unknown(self) -> None:
        """Say that the run is awaited, if it is not known yet."""
        if not self._is_known:
            extra = {"action": "run_awaited", "run_id": self._options.run}
            logger.warning("waiting for %s", self._unknown(), extra=extra)

    def came(self) -> None:
        """Note that the trainer got a group."""
        self._waited_s, self._tell_at_s = 0.0, _TELL_S

    def waited(self, pause_s: float, *, needed: int, at_hand: int) -> None:
        """Note that no group came for `pause_s` more; every minute the log says so.

        Args:
            pause_s: in seconds.
            needed: groups that are asked for.
            at_hand: those of them that wait already.
        """
        self._waited_s += pause_s
        if self._waited_s < self._tell_at_s:
            return
        self._tell_at_s = self._waited_s + _TELL_S
        logger.warning(
            "run %s: waiting for %d group(s) for %.0f s, of which %d are at hand; %s; %s",
            self._options.run,
            needed,
            self._waited_s,
            at_hand,
            self._state(),
            self._dropped(),
            extra={"action": "trainer_waits", "run_id": self._options.run},
        )

    def _info(self) -> RunInfo | None:
        found = self._runs.several([self._options.run])
        return found[0] if found else None

    def _unknown(self) -> str:
        run, known = self._options.run, self._runs.ids()[:_RUNS]
        close = difflib.get_close_matches(run, known, n=3)
        names = f"; there is {', '.join(map(repr, close))}" if close else ""
        return f"run {run!r}, which is unknown in this Redis{names}"

    def _state(self) -> str:
        try:
            info = self._info()
            if info is None:
                return self._unknown()
        except RedisUnavailable as error:
            return str(error)
        counters = info.counters
        if info.state == "paused":
            return f"the run is paused by {info.paused_by}: {info.reason}"
        if counters.queued or counters.running:
            return f"{counters.queued} trajectories wait and {counters.running} run"
        return (
            "all of its trajectories have ended, so nothing comes unless more are enqueued (jobs "
            "that exist already are not enqueued again)"
        )

    def _dropped(self) -> str:
        counts, most = self._counts, self._options.max_lag
        reasons = "".join(f", {each} {n}" for each, n in sorted(counts.refused.items()))
        return (
            f"taken {counts.taken}, dropped as older than max_lag={most} {counts.dropped}, "
            f"with equal scores {counts.equal}, trained before {counts.recognised}, "
            f"refused {counts.refused.total()}{reasons}"
        )


def _lacks_tokens(config: Mapping[str, Any]) -> bool:
    """Whether the agent of a run asks its model server for no token ids."""
    # Only here: a feed whose groups nobody checks needs no agents.
    from hermes_queue.agent.parameters import OpenAIParams, read_params
    from hermes_queue.agent.registry import load_agent

    kind = str(config.get("agent") or "")
    try:
        params = getattr(load_agent(kind), "params", None) if kind else None
        if not (isinstance(params, type) and issubclass(params, OpenAIParams)):
            return False
        given = read_params(params, config.get("agent_params") or {}, kind)
    except ConfigurationError:  # an agent of a newer version, or one that only workers have
        return False
    return given.mode != "tokens" and not given.token_ids
