"""What `hermes-queue mix show` prints."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from hermes_queue.cli.watch.table import aligned
from hermes_queue.ledger.mixing.shown import ShownMix, ShownSource

_HEAD = ("source", "weight", "share", "groups", "trajectories", "epoch", "rows", "sampler", "state")


def summary_rows(found: Sequence[ShownMix]) -> list[tuple[str, ...]]:
    """A table of mixes."""
    rows: list[tuple[str, ...]] = [("mix", "served by", "sources", "groups", "waiting", "running")]
    for each in found:
        groups = sum(source.items for source in each.sources.values())
        numbers = (len(each.sources), groups, each.waiting, each.running)
        rows.append((each.name, _served(each), *map(str, numbers)))
    return rows


def mix_lines(mix: ShownMix) -> Iterator[str]:
    """One mix, source by source."""
    yield f"{mix.name}: served by {_served(mix)}"
    yield f"{mix.waiting} waiting, {mix.running} running, {mix.finished} finished"
    if mix.live:
        yield f"set by `mix set`: {_live(mix.live)}"
    if not mix.sources:
        yield "its sources have not been read yet"
        return
    active = {name: _state(source) == "active" for name, source in mix.sources.items()}
    total = sum(source.weight for name, source in mix.sources.items() if active[name])
    rows = [_HEAD]
    for name, source in mix.sources.items():
        share = source.weight / total if active[name] else 0.0
        rows.append(
            (
                name,
                f"{source.weight:g}" + ("*" if "weight" in source.live else ""),
                f"{share:.1%}",
                _of(source.items, source.quota_items),
                _of(source.trajectories, source.quota_trajectories),
                _of(min(source.epoch, source.epochs or source.epoch), source.epochs),
                str(source.rows),
                source.sampler,
                _state(source),
            )
        )
    yield from aligned(rows)
    for name, source in mix.sources.items():
        if source.looked:
            counts = ", ".join(f"{count} {what}" for what, count in sorted(source.looked.items()))
            yield f"{name}, by pass rate, of the rows looked at in this epoch: {counts}"
    if any("weight" in source.live for source in mix.sources.values()):
        yield "* set while it was served; the file has another one"


def _of(used: int, most: int | None) -> str:
    return str(used) if most is None else f"{used} of {most}"


def _state(source: ShownSource) -> str:
    if source.epochs is not None and source.epoch > source.epochs:
        return "done"
    quotas = (
        (source.quota_items, source.items + 1),
        (source.quota_trajectories, source.trajectories + source.group_jobs),
    )
    if any(most is not None and used > most for most, used in quotas):
        return "quota reached"
    if source.pause:
        return "paused"
    return "active" if source.weight > 0 else "weight 0"


def _served(mix: ShownMix) -> str:
    facts: dict[str, Any] = mix.served_by
    if facts:
        text = f"process {facts.get('pid')} on {facts.get('host')}"
        if since := facts.get("since"):
            text += time.strftime(", since %Y-%m-%d %H:%M UTC", time.gmtime(since))
        return text
    return f"nobody ({mix.ended})" if mix.ended else "nobody (its producer died, or Redis was away)"


def _live(settings: dict[str, str]) -> str:
    return ", ".join(f"{name}={value[:20]}" for name, value in sorted(settings.items()))
