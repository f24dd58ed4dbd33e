"""Draws the overview of `status` and `top`: the same tables, cut to the available height."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hermes_queue.cli.overview import Lane, Overview, RunProgress
from hermes_queue.cli.watch.running import AllRunning
from hermes_queue.cli.watch.scrolling import Scrolling
from hermes_queue.cli.watch.table import age, ahead_of_trainer, figure
from hermes_queue.ledger.accounts.goodput import goodput_of
from hermes_queue.ledger.answers import middle
from hermes_queue.terminal.escapes import label

_BAR_CELLS = 5
_CHOSEN_WEIGHT = 100
"""Of the table that keys move."""
_MOST_BUDGETS = 3
_MOST_LIMITS = 2
_TROUBLES = 3
"""Limits of shares that are named."""
_MOST_PACED = 3
"""Runs that wait for their trainer and have a line of their own."""
_MOST_LOSSES = 3
"""Losses of slot-time that are named."""
_SILENT_S = 25.0
"""Seconds without a heartbeat after which a worker is shown in another colour."""

Cell = str | Text


@dataclass(frozen=True, slots=True)
class _Block:
    """One table; `weight` = its share of the height."""

    columns: Sequence[str]
    """Headings; `>` before one justifies its column to the right."""
    rows: list[list[Cell]]
    weight: int
    empty: str
    """Text in place of rows."""


def frame(
    seen: Overview,
    *,
    height: int | None = None,
    note: str = "",
    scrolling: Scrolling | None = None,
    running: AllRunning | None = None,
) -> RenderableType:
    """The overview on one screen.

    Args:
        seen: the overview.
        height: available lines; None = unlimited.
        note: line at the top, e.g. that Redis does not answer.
        scrolling: what keys have moved.
        running: all trajectories, if they were read; else those that heartbeats list.
    """
    keys = scrolling or Scrolling()
    head = [_headline(seen, is_watched=scrolling is not None), _totals(seen)]
    if note:
        head.append(_line((note, "bold red")))
    held = [*_paced(seen), *_budgets(seen), *_limits(seen), *_trouble(seen)]
    tail = [*held, _goodput(seen), _failures(seen), _results(seen)]
    slowest = _slowest(seen) if running is None else _all_running(running)
    blocks = [_runs(seen), _lanes(seen), _workers(seen), slowest]
    if keys.table is not None:
        blocks[keys.table] = replace(blocks[keys.table], weight=_CHOSEN_WEIGHT)
    left = None if height is None else height - len(head) - len(tail) - len(blocks)
    shares = _shares(blocks, left)
    tables = [_table(blocks[at], shares[at], at, keys) for at in range(len(blocks))]
    return Group(*head, *tables, *tail)


def _shares(blocks: Sequence[_Block], left: int | None) -> list[int]:
    """Number of rows of each block, by weight; a block that needs fewer leaves them to others."""
    needed = [max(1, len(block.rows)) for block in blocks]
    if left is None or sum(needed) <= left:
        return needed
    shares = [1] * len(blocks)
    while sum(shares) < max(left, len(blocks)):
        open_ = [i for i in range(len(blocks)) if shares[i] < needed[i]]
        if not open_:
            break
        shares[min(open_, key=lambda i: shares[i] / blocks[i].weight)] += 1
    return shares


def _table(block: _Block, rows: int, at: int, keys: Scrolling) -> Table:
    style = "bold reverse cyan" if keys.table == at else "bold cyan"
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, header_style=style)
    for heading in block.columns:
        justify: Literal["left", "right"] = "right" if heading.startswith(">") else "left"
        table.add_column(heading.lstrip(">"), justify=justify, no_wrap=True, overflow="ellipsis")
    table.columns[-1].ratio = 1
    blanks = [""] * (len(block.columns) - 1)
    if not block.rows:
        table.add_row(*blanks, Text(block.empty, style="dim"))
    total = len(block.rows)
    fitting = total if total <= rows else max(1, rows - 1)
    first = keys.fits(at, total, fitting)
    for row in block.rows[first : first + fitting]:
        table.add_row(*map(_plain, row))
    hidden = total - fitting
    if hidden and rows > 1:
        text = f"{first + 1} to {first + fitting} of {total}" if first else f"and {hidden} more"
        table.add_row(*blanks, Text(text, style="dim"))
    return table


def _plain(cell: Cell) -> Text:
    """A cell without what a terminal or the library would obey: names may come from anybody."""
    if isinstance(cell, Text):
        return Text(label(cell.plain), style=cell.style)
    return Text(label(cell))


def _headline(seen: Overview, *, is_watched: bool) -> Text:
    redis = seen.redis
    clock = time.strftime("%H:%M:%S", time.gmtime(seen.at))
    limit = f" of {_bytes(redis.max_bytes)}" if redis.max_bytes else ""
    evicts = "" if redis.policy == "noeviction" else f", evicts ({redis.policy})"
    return _line(
        (f"hermes-queue {clock} UTC", "bold"),
        f"  redis {redis.version}, {_bytes(redis.used_bytes)}{limit}",
        ", AOF" if redis.aof else (", no AOF", "bold yellow"),
        (evicts, "bold red"),
        ("  tab, arrows, pages: scroll; q: end" if is_watched else "", "dim"),
    )


def _totals(seen: Overview) -> Text:
    slots = sum(worker.get("slots", 0) for worker in seen.workers)
    waiting = sum(lane.depth for lane in seen.lanes)
    creating = f" (+{seen.starting} starting)" if seen.starting else ""
    parts = [
        f"running {seen.leased} of {slots} slots",
        f"waiting {waiting}",
        f"delayed {seen.delayed}",
        f"{len(seen.workers)} workers",
        f"{seen.sandboxes} sandboxes{creating}",
    ]
    return _line(" | ".join(parts))


def _runs(seen: Overview) -> _Block:
    columns = ("RUN", "STATE", "DONE", ">", ">ACTIVE", ">FAILED", ">PER H", "ETA")
    current = [each for each in seen.runs if each.info.state in ("active", "paused")]
    ended = [each for each in seen.runs if each.info.state not in ("active", "paused")]
    return _Block(columns, [_run(each) for each in (*current, *ended)], 3, "no runs")


def _run(run: RunProgress) -> list[Cell]:
    counts, info = run.info.counters, run.info
    done = max(0, counts.total - counts.queued - counts.running)
    share = done / counts.total if counts.total else 0.0
    style = {"active": "green", "paused": "yellow", "cancelled": "red"}.get(info.state, "dim")
    eta = age(run.eta_s) if run.eta_s is not None else "-"
    if info.state == "paused":
        eta = f"{info.paused_by}: {info.reason}" if info.reason else info.paused_by
    return [
        middle(info.run_id, 24),
        Text(info.state, style=style),
        Text(_bar(share), style=style),
        f"{done}/{counts.total}",
        str(counts.running),
        Text(str(counts.failed), style="red" if counts.failed else ""),
        f"{run.per_hour:.0f}",
        "" if info.state in ("done", "cancelled") else eta,
    ]


def _lanes(seen: Overview) -> _Block:
    columns = ("LANE", ">WAITING", ">RETRIES", ">OLDEST", ">ACTIVE", ">WORKERS", "STATE")
    return _Block(columns, [_lane(lane) for lane in seen.lanes], 2, "no lanes yet")


def _lane(lane: Lane) -> list[Cell]:
    breaker = lane.breaker
    state = Text("working", style="green")
    if breaker.state != "closed":
        word = "paused" if breaker.state == "open" else "probing"
        state = Text(f"{word} ({breaker.cause}): {breaker.message}", style="yellow")
    elif lane.endpoints:
        held = lane.endpoints[0]
        state = Text(f"without {held.endpoint} ({held.cause}): {held.message}", style="yellow")
    elif lane.depth and not lane.workers:
        state = Text("no worker serves it", style="bold red")
    return [
        middle(lane.name, 24),
        str(lane.depth),
        str(lane.retries),
        "-" if lane.oldest_s is None else age(lane.oldest_s),
        str(lane.running),
        str(lane.workers),
        state,
    ]


def _workers(seen: Overview) -> _Block:
    columns = ("WORKER", ">SLOTS", ">BOXES", ">BEAT", "INTAKE", "STAGES")
    return _Block(columns, [_worker(each) for each in seen.workers], 2, "no live workers")


def _worker(facts: dict[str, Any]) -> list[Cell]:
    intake = str(facts.get("intake", ""))
    if facts.get("paused_lanes") and intake == "open":
        intake = "not " + ",".join(facts["paused_lanes"])
    stages = sorted(facts.get("stages", {}).items(), key=lambda pair: -pair[1])
    detail = " ".join(f"{name} {count}" for name, count in stages)
    if facts.get("spooled"):
        detail = f"{facts['spooled']} in spool  {detail}"
    late = facts["silent_s"] > _SILENT_S
    return [
        middle(str(facts.get("name") or facts["owner"]), 28),
        f"{facts.get('running', 0)}/{facts.get('slots', 0)}",
        str(facts.get("sandboxes", 0)),
        Text(age(facts["silent_s"]), style="yellow" if late else ""),
        Text(intake, style="green" if intake == "open" else "yellow"),
        detail,
    ]


def _trouble(seen: Overview) -> list[Text]:
    """What model calls fail of, a line for each run."""
    found = {
        run: text for worker in seen.workers for run, text in worker.get("trouble", {}).items()
    }
    return [
        _line(("model ", "bold cyan"), (label(f"{middle(run, 30)}: {text}"), "yellow"))
        for run, text in sorted(found.items())[:_TROUBLES]
    ]


def _slowest(seen: Overview) -> _Block:
    columns = (">AGE", "STAGE", ">TURNS", ">TRY", "WORKER", "SLOWEST TRAJECTORIES")
    rows: list[list[Cell]] = [
        [
            age(each["age_s"]),
            each["stage"],
            str(each["turns"]),
            str(each["attempt"]),
            middle(str(each["worker"]), 20),
            each["label"] or each["trajectory_id"],
        ]
        for each in seen.oldest[:20]
    ]
    return _Block(columns, rows, 3, "nothing runs")


def _all_running(running: AllRunning) -> _Block:
    columns = (">AGE", "STAGE", ">TURNS", ">TRY", "WORKER", "ALL TRAJECTORIES")
    rows: list[list[Cell]] = [
        [
            "?" if each.age_s is None else age(each.age_s),
            each.stage,
            "" if each.turns is None else str(each.turns),
            "" if each.attempt is None else str(each.attempt),
            middle(each.worker, 20),
            each.label or each.trajectory_id,
        ]
        for each in running.items
    ]
    return _Block(columns, rows, 3, "nothing runs")


def _paced(seen: Overview) -> list[Text]:
    """A line for each run that waits for its trainer."""
    return [
        _line(
            ("PACED ", "bold cyan"),
            f"{middle(run.info.run_id, 24)}: {ahead_of_trainer(run.info.pace, seen.at)}",
        )
        for run in seen.runs
        if run.info.state == "active" and run.info.pace and run.info.pace.held
    ][:_MOST_PACED]


def _budgets(seen: Overview) -> list[Text]:
    """A line for each shared budget that has no room for jobs."""
    return [
        _line(
            ("BUDGET ", "bold cyan"),
            f"{label(middle(each.name, 40))} has no room: {each.waiting} waiting; "
            "see hermes-queue budget list",
        )
        for each in seen.budgets
    ][:_MOST_BUDGETS]


def _limits(seen: Overview) -> list[Text]:
    """A line that names whose jobs wait because no more of them may run."""
    if not seen.limits:
        return []
    named = [f"{kind} {label(middle(name, 24)) or '(none)'}" for kind, name in seen.limits]
    more = ", ..." if len(named) > _MOST_LIMITS else ""
    return [
        _line(
            ("AT LIMIT ", "bold cyan"),
            f"{', '.join(named[:_MOST_LIMITS])}{more}; see hermes-queue shares list",
        )
    ]


def _goodput(seen: Overview) -> Text:
    """Scored trajectories of the last hour, and the largest losses of slot-time."""
    good = goodput_of(seen.lately.accounts)
    if good.per_slot_hour is None:
        return _line(("GOODPUT ", "bold cyan"), "last hour: no lease has ended")
    usd = "" if good.per_usd is None else f", {figure(good.per_usd)} per US$"
    lost = [f"{name} {100 * s / good.leased_s:.0f} %" for name, s in good.lost[:_MOST_LOSSES]]
    return _line(
        ("GOODPUT ", "bold cyan"),
        f"{figure(good.per_slot_hour)} per slot-hour{usd}, "
        f"{100 * good.work_s / good.leased_s:.0f} % of slot-time scored",
        (f"; lost: {', '.join(lost)}" if lost else "", "yellow"),
    )


def _failures(seen: Overview) -> Text:
    attempts, dead = seen.lately.attempts, seen.dead_letters
    failed = sorted(((count, cause) for cause, count in attempts.items() if cause), reverse=True)
    counts = ", ".join(f"{cause} {count}" for count, cause in failed)
    return _line(
        ("FAILURES ", "bold cyan"),
        "last hour: ",
        (counts, "red") if counts else ("none", "green"),
        f" of {sum(attempts.values())} attempts",
        ("  DEAD LETTERS ", "bold cyan"),
        (str(dead), "bold red" if dead else ""),
    )


def _results(seen: Overview) -> Text:
    stream = seen.stream
    parts = [("RESULTS ", "bold cyan"), (f"{stream.groups} groups, {_bytes(stream.bytes)}", "")]
    for reader in stream.readers:
        slow = reader.behind > 0 and (reader.idle_s is None or reader.idle_s > 60)
        lag = f"; {reader.name}: {reader.behind} behind, {reader.pending} pending"
        parts.append((lag, "yellow" if slow else ""))
    return _line(*parts, "" if stream.readers else "; no readers")


def _line(*parts: str | tuple[str, str]) -> Text:
    """Texts, or texts with their styles, on one line that is cut where the screen ends."""
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _bar(share: float) -> str:
    full = int(share * _BAR_CELLS)
    return "#" * full + "." * (_BAR_CELLS - full) + f" {100 * share:3.0f}%"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"
