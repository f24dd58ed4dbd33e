"""A report of a run as one HTML file: no script, and nothing is asked of any server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape

from hermes_plugins.goodput.facts import RunReport
from hermes_plugins.goodput.plots import Bar, Layer, bars, columns, line
from hermes_plugins.goodput.plots import waterfall as falling
from hermes_plugins.goodput.text import figures, heading, interval
from hermes_plugins.goodput.waterfall import waterfall
from hermes_queue.cli.watch.table import slot_time

_STYLE = """
:root{color-scheme:light dark;--fg:#1d2329;--dim:#5c6773;--bg:#fff;--line:#d5dae0}
@media(prefers-color-scheme:dark){:root{--fg:#e4e8ec;--dim:#9aa5b1;--bg:#14181c;--line:#363d45}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:44rem;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.3rem;overflow-wrap:anywhere}h2{font-size:1rem;margin:2rem 0 .4rem}
p{margin:.3rem 0}svg{width:100%;height:auto}svg text{font-size:11px;fill:var(--dim)}
.axis{fill:none;stroke:var(--line)}.line{fill:none!important;stroke-width:2}
.good{fill:#2f8f5b;stroke:#2f8f5b;background:#2f8f5b}.bad{fill:#c8453b;stroke:#c8453b;background:#c8453b}
.work{fill:#3a74c4;stroke:#3a74c4;background:#3a74c4}rect{stroke:none!important}
.legend{color:var(--dim);font-size:.85rem}.legend span{margin-right:1rem}
.legend i{display:inline-block;width:.7em;height:.7em;margin-right:.3em}
table{border-collapse:collapse;width:100%;font-size:.9rem}
td,th{text-align:left;padding:.2rem .8rem .2rem 0;border-bottom:1px solid var(--line);
overflow-wrap:anywhere;vertical-align:top}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page_of(report: RunReport) -> str:
    """The page. Names in it may be anything: all are escaped."""
    title = escape(f"Run {report.info.run_id}")
    head = [f"<p>{escape(text)}</p>" for text in (*heading(report), *figures(report))]
    body = "\n".join([f"<h1>{title}</h1>", *head, *_sections(report)])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _sections(report: RunReport) -> list[str]:
    good = report.good
    found = [*_course(report)]
    if any(good.histogram):
        scores = [Bar(_tenth(n), count, f"{count:.0f}") for n, count in enumerate(good.histogram)]
        found += _section("Scores", bars("scores", scores))
    if rows := waterfall(good):
        losses = [
            Bar(
                each.name,
                each.seconds,
                f"{100 * each.share:.1f} %, {slot_time(each.seconds)}",
                "work" if each.is_work else "bad",
            )
            for each in rows
        ]
        meaning = [(each.name, each.what) for each in rows]
        found += _section("Where slot-time went", falling("slot-time", losses), _table(meaning))
    if good.usd:
        costs = {"models": sum(good.model_usd.values()), "slots": sum(good.slot_usd.values())}
        money = [Bar(name, usd, f"US$ {usd:.4f}") for name, usd in costs.items()]
        found += _section("Cost", bars("cost", money))
    if report.causes:
        failures = [
            Bar(cause, r + e, f"{r:.0f} tried again, {e:.0f} for good", "bad")
            for cause, r, e in report.causes
        ]
        found += _section("Failures by cause", bars("failures", failures))
    if report.slowest:
        slow = [(slot_time(seconds), item, name) for item, name, seconds in report.slowest]
        found += _section("Slowest trajectories", _table(slow))
    if report.lags:
        lags = [Bar(f"{lag} versions", float(n), f"{n}") for lag, n in report.lags.items()]
        found += _section("Age of policies at publication", bars("age of policies", lags))
    return found


def _course(report: RunReport) -> list[str]:
    course = report.course
    if not course:
        return []
    ends = (_clock(course[0].at), _clock(course[-1].at + course[-1].width_s))
    values = {
        name: [moment.sums.get(name, 0.0) for moment in course]
        for name in ("scored", "failed", "passed", "score", "usd")
    }
    ended = [Layer("scored", "good", values["scored"]), Layer("failed", "bad", values["failed"])]
    found = _section(
        f"Trajectories per {interval(course[0].width_s)}", columns("throughput", ended, ends)
    )
    for title, name in (("Pass rate", "passed"), ("Mean score", "score")):
        shares = [
            part / count if count else float("nan")
            for part, count in zip(values[name], values["scored"], strict=True)
        ]
        layer = Layer(title.lower(), "work", shares)
        most = 1.0 if name == "passed" else None
        found += _section(title, line(title, layer, ends, most=most))
    if any(values["usd"]):
        total, spent = 0.0, []
        for usd in values["usd"]:
            total += usd
            spent.append(total)
        found += _section(
            "US$ so far", line("cost", Layer("models and slots", "work", spent), ends)
        )
    return found


def _section(title: str, *parts: str) -> list[str]:
    return [f"<h2>{escape(title)}</h2>", *parts]


def _table(rows: Sequence[Sequence[str]]) -> str:
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _tenth(n: int) -> str:
    """The label of a bar of scores."""
    return f"{n / 10:.1f}" if n == 10 else f"{n / 10:.1f} to {n / 10 + 0.1:.1f}"


def _clock(at: float) -> str:
    return time.strftime("%m-%d %H:%M", time.gmtime(at))
