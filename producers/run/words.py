"""Flags of a producer among the words of another command: `hermes-queue play` and `regrade`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from producers.run.flags import Options, Parser
from producers.run.options import (
    GroupOptions,
    ProducerOptions,
    StalenessOptions,
)
from producers.run.queueing.budgets import BudgetOptions
from producers.run.queueing.part import PartOptions
from producers.run.sandbox_options import chosen_backend
from producers.source import Producer


def options_in(
    words: Sequence[str],
    groups: Mapping[str, type[Options]],
    producer: Producer,
    *,
    command: str,
    **given: Any,
) -> ProducerOptions:
    """The options of some groups and the producer's own ones, as `words` say.

    Args:
        words: flags and their values.
        groups: by the field of `ProducerOptions`; flags of other groups are refused.
        producer: whose own flags are taken as well.
        command: what people type; its help is named when a flag is refused.
        given: the fields that the command decides. Sizes of groups, staleness and budgets have
            their defaults, unless `groups` has them.

    Raises:
        ConfigurationError: a flag is unknown or wrong; the message has the fix.
    """
    parser = Parser(add_help=False, allow_abbrev=False, prog=command)
    backend = chosen_backend(words)
    for group in groups.values():
        group.add(parser, env=producer.env, sandbox=backend)
    producer.options.add(parser)
    found = parser.parse_args(words)
    parsed: dict[str, Any] = {name: group.of(found) for name, group in groups.items()}
    unless_parsed: dict[str, Any] = {
        "groups": GroupOptions(),
        "staleness": StalenessOptions(),
        "budgets": BudgetOptions(),
        "part": PartOptions(),
    }
    own = producer.options.of(found)
    return ProducerOptions(**{**unless_parsed, **parsed}, own=own, **given)
