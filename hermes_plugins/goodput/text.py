"""A report of a run for a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from hermes_plugins.goodput.command import summary_of
from hermes_plugins.goodput.facts import RunReport
from hermes_plugins.goodput.waterfall import waterfall
from hermes_queue.cli.watch.table import age, slot_time
from hermes_queue.ledger.accounts.fields import DRIFTED, TURNS

_BLOCKS = " .:-=+*#"
_SPARKS_MOST = 60
_OF_RUN = ("producer", "env", "agent", "model")
"""Parts of a run's configuration that say what it is."""
_BAR = 14


def lines_of(report: RunReport) -> Iterator[str]:
    """The report, line by line."""
    yield from heading(report)
    yield ""
    yield from figures(report)
    if report.course:
        yield ""
        yield from _course(report)
    yield from _table("where slot-time went (- came to nothing)", _losses(report))
    causes = [(cause, f"{r:.0f} tried again, {e:.0f} for good") for cause, r, e in report.causes]
    yield from _table("failures by cause", causes)
    slow = [(slot_time(s), f"{item}  {name}") for item, name, s in report.slowest]
    yield from _table("slowest trajectories", slow)
    lags = [(f"{lag} versions", f"{count} members") for lag, count in report.lags.items()]
    yield from _table("age of policies, as far as the stream has results", lags)


def interval(seconds: float) -> str:
    """Behind "per": `minute`, else `8.0 min`."""
    return "minute" if seconds == 60 else age(seconds)


def heading(report: RunReport) -> list[str]:
    """Run, its progress, and when the report was made."""
    info, counts = report.info, report.info.counters
    ended = counts.total - counts.queued - counts.running
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.at))
    known = [f"{name} {info.config[name]}" for name in _OF_RUN if info.config.get(name)]
    return [
        f"{info.run_id}: {info.state}, {ended} of {counts.total} ended, "
        f"begun {age(report.at - info.created)} ago; {when}",
        *([", ".join(known)] if known else []),
        f"{counts.groups} groups published, {counts.dropped} dropped, "
        f"{counts.failed} failed, {counts.refilled} refilled, {counts.stale} stale, "
        f"{counts.surplus} surplus",
    ]


def figures(report: RunReport) -> list[str]:
    """Goodput, scores and drift, and why the run does not go on."""
    info, good = report.info, report.good
    lines = summary_of(good)
    if good.mean_score is not None and good.pass_rate is not None:
        lines.append(
            f"mean score {good.mean_score:.3f}, {100 * good.pass_rate:.1f} % passed of "
            f"{good.all_scored:.0f} scored"
        )
    if turns := good.drift.get(TURNS):
        drifted = good.drift.get(DRIFTED, 0)
        lines.append(f"tokens of {drifted:.0f} of {turns:.0f} continued turns drifted")
    if info.reason:
        lines.append(f"{info.state}: {info.reason}")
    return lines


def _course(report: RunReport) -> Iterator[str]:
    step = interval(report.course[0].width_s)
    scored = [moment.sums.get("scored", 0.0) for moment in report.course]
    yield f"scored per {step}: {_spark(scored)} at most {max(scored):.0f}"
    rates = [
        m.sums["passed"] / m.sums["scored"] if m.sums.get("passed") and m.sums["scored"] else 0.0
        for m in report.course
    ]
    yield f"pass rate per {step}: {_spark(rates)} at most {100 * max(rates):.0f} %"


def _spark(values: Sequence[float]) -> str:
    width = -(-len(values) // _SPARKS_MOST)
    joined = [sum(values[n : n + width]) / width for n in range(0, len(values), width)]
    most = max(joined) or 1.0
    return "".join(_BLOCKS[round(value / most * (len(_BLOCKS) - 1))] for value in joined)


def _losses(report: RunReport) -> list[tuple[str, str]]:
    found = []
    for loss in waterfall(report.good):
        bar = "#" * round(_BAR * loss.share)
        found.append((loss.title, f"{100 * loss.share:5.1f} %  {bar.ljust(_BAR)}  {loss.what}"))
    return found


def _table(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield ""
        yield title
        width = max(len(name) for name, _ in rows)
        yield from (f"  {name.ljust(width)}  {rest}".rstrip() for name, rest in rows)
