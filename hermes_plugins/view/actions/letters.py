"""Actions on the dead letters of a filter."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from hermes_plugins.view.actions.base import (
    ONE_CALL_MAX,
    Acting,
    ActionArguments,
    Given,
    OperatorAction,
    bounded,
    options,
)
from hermes_plugins.view.actions.runs import refuse_backlog
from hermes_plugins.view.answers import Refusal
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger.dead import DeadLetters, Letter, LetterFilter
from hermes_queue.ledger.ledger import Ledger

READ_MAX = 20_000
"""Letters that one request looks at, from the oldest on."""
_TERM = re.compile(r"(run|env|cause):(\S+)")


class OfLetters(ActionArguments):
    """Dead letters: those named, or all of a filter."""

    q: Annotated[str, Field(max_length=2048)] = ""
    ids: Annotated[tuple[Given, ...], Field(max_length=ONE_CALL_MAX)] = ()


def letter_filter(q: str) -> LetterFilter:
    """The filter that `run:`, `env:` and `cause:` make.

    Raises:
        Refusal: there is something else.
    """
    wanted: dict[str, str] = {}
    for found in re.finditer(r"\S+", q):
        term = _TERM.fullmatch(found[0])
        if term is None or term[1] in wanted:
            hint = "known, once each: run:NAME, env:NAME, cause:NAME"
            at = len(q[: found.start()].encode("utf-16-le", "surrogatepass")) // 2
            raise Refusal(400, f"{found[0][:40]!r} is no condition here", hint, at=at)
        wanted[term[1]] = term[2]
    run_id, env, cause = (wanted.get(name, "") for name in ("run", "env", "cause"))
    return LetterFilter(run_id=run_id, env=env, cause=cause)


def _chosen(ledger: Ledger, given: OfLetters) -> Iterator[Letter]:
    letters = DeadLetters(ledger)
    if given.ids and given.q:
        raise ConfigurationError("give ids or a filter")
    if given.ids:
        return (letters.get(each) for each in given.ids)
    return itertools.islice(letters.find(letter_filter(given.q)), READ_MAX)


def _with_job(ledger: Ledger, given: OfLetters) -> Iterator[Letter]:
    """Those that can run again, one by one: each may hold a log and an item of many kilobytes.

    Letters about a group have no job.
    """
    return (each for each in _chosen(ledger, given) if each.fields.get("job"))


def _requeue(acting: Acting, given: OfLetters) -> int:
    from hermes_queue.broker.rerun import rerun_letters

    chosen = _with_job(acting.ledger, given)
    return bounded(rerun_letters(acting.ledger, chosen, on_full=refuse_backlog), acting.stopping)


def _purge(acting: Acting, given: OfLetters) -> int:
    letters = DeadLetters(acting.ledger)
    purged = (each for each in _chosen(acting.ledger, given) if letters.purge(each))
    return bounded(purged, acting.stopping)


def _words(verb: str, given: OfLetters) -> list[str]:
    if given.ids:
        return ["dead", verb, *given.ids]
    chosen = letter_filter(given.q)
    return ["dead", verb, *options(run=chosen.run_id, env=chosen.env, cause=chosen.cause)]


ACTIONS: tuple[OperatorAction[Any], ...] = (
    OperatorAction(
        "dead_requeue",
        "Run the jobs of dead letters again, each as a group of its own.",
        OfLetters,
        lambda ledger, given: sum(1 for _ in _with_job(ledger, given)),
        _requeue,
        lambda given: _words("requeue", given),
    ),
    OperatorAction(
        "dead_purge",
        "Delete dead letters, with the evidence in them.",
        OfLetters,
        lambda ledger, given: sum(1 for _ in _chosen(ledger, given)),
        _purge,
        lambda given: _words("purge", given),
        confirm=lambda given: "purge",
    ),
)
