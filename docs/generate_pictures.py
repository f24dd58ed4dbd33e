"""Draw the pictures of the documentation: docs/*.svg, from text, settings, scripts and imports.

`make docs` writes them; a test fails when one is not what this script draws.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from hermes_queue.settings import LeaseSettings

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
sys.path.insert(0, str(FOLDER))

from drawing import Picture  # noqa: E402

PACKAGES = ("workers", "producers", "envs", "hermes_queue")


def flow() -> Picture:
    """Who talks to whom."""
    p = Picture(
        860,
        330,
        "Producers put jobs into Redis; workers lease them, let an agent act in a slot of a "
        "sandbox, verify, and publish groups to the results stream, which sinks and trainers read.",
    )
    p.box(20, 120, 120, 64, "Producer", "rows → jobs")
    p.frame(205, 30, 170, 270, "Redis", "redis")
    p.frame(440, 30, 170, 150, "Worker", "worker")
    p.box(680, 30, 160, 64, "Model", "or a script")
    p.box(680, 116, 160, 64, "Sandbox", "slot = one workspace")
    p.box(440, 236, 170, 64, "Sink", "files, Parquet, Atropos")
    p.box(680, 236, 160, 64, "Trainer", "async for group in …")
    p.notes(
        525,
        78,
        [
            "lease the job",
            "acquire a slot, set it up",
            "agent: turns, tool calls",
            "verify: score",
            "spool, then publish",
        ],
        "note",
    )
    p.box(220, 70, 140, 46, "queues (Celery)", "waiting jobs")
    p.box(220, 140, 140, 46, "ledger", "running jobs")
    p.box(220, 238, 140, 46, "results (stream)", "finished groups")
    p.path("M140 140 H170 Q190 140 190 118 Q190 94 204 94 H218")
    p.path("M360 94 H438")
    p.path("M440 164 H362", start=True)
    p.path("M610 62 H678", start=True)
    p.path("M610 148 H678", start=True)
    p.path("M525 180 V204 Q525 212 510 212 H305 Q290 212 290 222 V236")
    p.path("M360 260 H438")
    p.path("M360 274 H400 Q408 274 408 290 V306 Q408 316 420 316 H750 Q760 316 760 308 V302")
    return p


def trajectory() -> Picture:
    """What exists while one trajectory runs: message, lease, slot, spooled record, result."""
    p = Picture(
        860,
        330,
        "The life of one trajectory on a time line: the message exists until the lease is taken, "
        "the lease until the record is published, the slot from acquire to reset, the spooled "
        "record from the verdict until publication, the result until every reader has "
        "acknowledged it.",
    )
    stages = {
        "queued": (110, 200),
        "load, prepare": (200, 300),
        "acquire": (300, 366),
        "setup": (366, 426),
        "agent": (426, 566),
        "verify": (566, 636),
        "publish": (636, 706),
        "results stream": (706, 840),
    }
    for name, (left, right) in stages.items():
        p.text((left + right) / 2, 30, name, "title")
        p.path(f"M{left} 42 V306", "faint", end=False)
    rows = (
        ("message", "Celery", 110, 206, "message", "redis"),
        ("lease", "ledger", 200, 706, "lease, renewed all the while", "redis"),
        ("slot", "sandbox", 340, 670, "slot", "worker"),
        ("record", "worker's disk", 636, 706, "spool", "worker"),
        ("result", "Redis", 690, 840, "result", "redis"),
    )
    for number, (name, place, left, right, text, style) in enumerate(rows):
        y = 60 + 50 * number
        p.text(100, y + 12, name, "title right")
        p.text(100, y + 27, place, "note right")
        p.bar(left, right, y, text, style)
    p.text(216, 78, "acknowledged as soon as the lease is taken", "note left halo")
    p.text(680, 178, "then emptied", "note left halo")
    p.text(626, 228, "on disk before anything else happens", "note right halo")
    p.text(680, 278, "kept until every consumer group has acknowledged it", "note right halo")
    return p


TRANSITIONS = {
    ("enqueue", "queued"): "claimed by a producer",
    ("begin", "running"): "leased by a worker",
    ("requeue", "queued"): "retried, or handed back",
    ("handover", "queued"): "to be graded by another worker",
    ("sweep", "queued"): "the lease expired",
    ("isolate", "queued"): "to run alone: workers died under this item before",
    ("publish", "final"): "measured, failed for good, or cancelled on its own",
    ("publish", "surplus"): "its group closed without it",
    ("enqueue", "surplus"): "its group was closed already",
    ("run_cancel", "cancelled"): "its run was cancelled",
    ("begin", "cancelled"): "its run was cancelled",
}
"""(script in hermes_queue/keyspace/lua, state that it sets) -> why. A test compares the scripts."""


def states() -> Picture:
    """The states of a job, and the script that makes each change."""
    p = Picture(
        860,
        420,
        "A job is queued (delayed, its message in the broker, or parked), then running; it ends as "
        "final, surplus or cancelled. Each arrow names the Lua script that makes the change.",
    )
    p.frame(30, 40, 260, 350, "queued", "redis")
    p.box(60, 80, 170, 66, "delayed", "waits for a time,", "then is sent")
    p.box(60, 196, 170, 66, "in the broker", "its message waits", "for a worker")
    p.box(60, 312, 170, 66, "parked", "its run is paused, or", "ahead of its trainer")
    p.box(450, 196, 150, 66, "running", "leased to one worker", style="worker")
    p.box(700, 80, 130, 56, "surplus", "not needed", style="end")
    p.box(700, 200, 130, 56, "final", "published", style="end")
    p.box(700, 320, 130, 56, "cancelled", "nothing published", style="end")
    p.path("M110 146 V194")
    p.text(103, 175, "due", "note right")
    p.path("M170 196 V148")
    p.notes(176, 168, ["held, or", "message lost"])
    p.path("M110 262 V310")
    p.text(103, 291, "begin", "note right")
    p.path("M230 340 H274 V116 H232")
    p.text(268, 289, "run_unpark,", "note right")
    p.text(268, 303, "run_release", "note right")
    p.path("M145 12 V38")
    p.text(153, 25, "enqueue", "note left")
    p.path("M230 229 H448")
    p.text(365, 222, "begin", "title")
    p.text(365, 245, TRANSITIONS["begin", "running"], "note")
    p.path("M525 196 V106 H292")
    for number, script in enumerate(("requeue", "handover", "sweep", "isolate")):
        p.text(405, 48 + 16 * number, f"{script}: {_short(script)}", "note")
    p.path("M600 229 H698")
    p.text(646, 222, "publish", "title")
    p.path("M570 196 V150 Q570 108 600 108 H698")
    p.text(646, 101, "publish", "title")
    p.path("M570 262 V308 Q570 340 600 340 H698")
    p.text(646, 333, "run_cancel", "title")
    p.path("M290 364 H698")
    p.text(450, 357, "run_cancel, begin: its run was cancelled", "note")
    p.path("M290 60 H306 V26 H765 V78")
    p.text(540, 19, "publish, enqueue: the group closed without it", "note")
    return p


def _short(script: str) -> str:
    why = TRANSITIONS[script, "queued"]
    return why.partition(":")[0]


def worker_death() -> Picture:
    """Lease and fence when a worker dies or stands still, with the defaults of the settings."""
    lease = LeaseSettings()
    p = Picture(
        860,
        400,
        "A worker renews its lease until it is killed. The lease expires, a sweep queues the job "
        "again, another worker begins it under a new epoch. If the first worker comes back, its "
        "renewals and failures are refused, because they carry the old epoch.",
    )
    start, kill, expiry, sweep, send, again = 130, 330, 500, 560, 610, 660
    for x, text in (
        (start, "begin"),
        (kill, "killed"),
        (expiry, "expired"),
        (sweep, "swept"),
        (again, "begin"),
    ):
        p.path(f"M{x} 44 V330", "faint dashed", end=False)
        p.text(x, 34, text, "title")
    rows = ("worker A", "lease", "queue", "worker B")
    for number, name in enumerate(rows):
        p.text(112, 76 + 66 * number, name, "title right")
    p.text(112, 158, "(ledger)", "note right")
    p.text(112, 224, "(Redis)", "note right")
    p.bar(start, kill, 58, "runs the job, epoch 1", "worker")
    p.path(f"M{kill + 6} 71 H{again + 60}", "faint dashed", end=False)
    p.text((kill + expiry) / 2, 75, "dead, or stopped", "note halo")
    p.bar(start, expiry, 124, f"{lease.duration_s:g} s, renewed every {lease.renew_s:g} s", "redis")
    for x in (180, 230, 280, 330):
        p.path(f"M{x} 86 V122")
    p.bar(sweep, send, 190, "", "redis")
    p.notes(expiry - 8, 202, ["sweep every", f"{lease.sweep_s:g} s"], "note right")
    p.text(send + 60, 207, f"sent within {lease.mover_s:g} s", "note left")
    p.path(f"M{sweep} 152 V188")
    p.path(f"M{send} 216 Q{send + 4} 269 {again - 2} 269")
    p.bar(again, 840, 256, "runs it again, epoch 2", "worker")
    p.path(f"M{expiry} 152 V170 H{sweep - 2}", "faint")
    at_most = lease.duration_s + lease.sweep_s + lease.mover_s
    p.path(f"M{kill} 306 H{send}", start=True)
    p.text((kill + send) / 2, 299, f"at most {at_most:g} s, then it waits for a slot", "note halo")
    p.notes(
        130,
        350,
        [
            "A worker of the same host finds A's lock free and does not wait for the lease.",
            "If A was only stopped and returns, its renewals and failures (epoch 1) are refused.",
            "A record that A had measured still counts, unless one was published before.",
        ],
    )
    return p


def group() -> Picture:
    """How a group closes: with a refill, and with an extra sample."""
    p = Picture(
        860,
        330,
        "Two groups close. In the first, the infrastructure fails sample 2, and a refill, "
        "sample 4, takes its place. In the second, three of four samples are enough, and the "
        "slowest is revoked as surplus.",
    )
    panels = (
        (
            40,
            "group of 4, one refill",
            (
                (0, 0, 170, "1.0", "worker"),
                (1, 0, 120, "0.0", "worker"),
                (2, 0, 90, "sandbox", "redis"),
                (3, 0, 215, "1.0", "worker"),
                (4, 90, 290, "0.0", "worker"),
            ),
            290,
            ("members 0, 1, 3, 4, complete", "extras: 2 (failed, replaced)"),
        ),
        (
            480,
            "group of 3, one extra sample",
            (
                (0, 0, 130, "1.0", "worker"),
                (1, 0, 180, "0.0", "worker"),
                (2, 0, 230, "", "redis"),
                (3, 0, 230, "1.0", "worker"),
            ),
            230,
            ("members 0, 1, 3, complete", "extras: 2 (surplus, revoked)"),
        ),
    )
    for left, title, samples, closed, lines in panels:
        p.text(left, 32, title, "title left")
        zero = left + 70
        for number, (sample, begin, end, text, style) in enumerate(samples):
            y = 50 + 36 * number
            p.text(zero - 8, y + 17, f"sample {sample}", "note right")
            p.bar(zero + begin, zero + end, y, text, style)
        if len(samples) == 5:
            p.path(f"M{zero + 90} 148 V192", "line dashed")
        else:
            p.text(zero + 115, 139.5, "still running")
        p.path(f"M{zero + closed} 44 V236", "line dashed", end=False)
        p.text(zero + closed, 252, "closed", "title")
        p.path(f"M{zero + closed} 256 V270")
        p.box(zero + closed - 230, 272, 270, 46, lines[0], lines[1], style="end")
    return p


ROOMS = tuple[tuple[str, ...], ...]
COLUMNS = {
    **{"workers": 190, "producers": 660, "envs": 390, "cli": 790},
    **{"broker": 90, "sinks": 630, "localmodal": 780, "agent": 230, "tools": 400, "results": 560},
    **{"trainers": 500},
    **{"ledger": 250, "sandbox": 640, "keyspace": 250, "bodies": 90},
    **{"telemetry": 440, "disk": 90, "settings": 390, "models": 230},
}
"""Where a room stands on its floor, so that few arrows cross; others are spread evenly."""


@cache
def layers() -> ROOMS:
    """The rooms by floor, from the top, as import-linter enforces them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages, inside = (
        [re.split(r" [|:] ", layer) for layer in contract["layers"]]
        for contract in project["tool"]["importlinter"]["contracts"][:2]
    )
    floors = [*packages[:-1], *inside]
    drawn = [tuple(room for room in floor if _is_room(room)) for floor in floors[:-1]]
    return (*(floor for floor in drawn if floor), tuple(floors[-1]))


def _is_room(name: str) -> bool:
    """Whether a layer's member is drawn: folders, and the module that every reader knows."""
    folder = ROOT / name if name in PACKAGES else ROOT / "hermes_queue" / name
    return folder.is_dir() or name == "models"


@cache
def imports() -> dict[str, set[str]]:
    """Which room imports which, from the source."""
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            own = _room(".".join(path.relative_to(ROOT).with_suffix("").parts))
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                found.setdefault(own, set()).update(_room(name) for name in names)
    return {room: others - {room, ""} for room, others in found.items() if room}


def _room(module: str) -> str:
    package, _, rest = module.partition(".")
    if package == "hermes_queue":
        return rest.partition(".")[0]
    return package if package in PACKAGES else ""


def arrows(rooms: set[str], graph: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """Imports between rooms, without those that follow from others."""

    @cache
    def below(room: str) -> frozenset[str]:
        direct = graph.get(room, set())
        return frozenset(direct.union(*(below(other) for other in direct)))

    return [
        (room, other)
        for room in sorted(rooms)
        for other in sorted(below(room) & rooms)
        if not any(other in below(third) for third in below(room) & rooms)
    ]


def rooms() -> Picture:
    """The rooms of the code, floor by floor, and who imports whom."""
    floors = layers()
    drawn, ground = floors[:-1], floors[-1]
    width, step = 860, 70
    p = Picture(
        width,
        step * len(floors) + 20,
        "The rooms of the code by floor: " + "; ".join(", ".join(floor) for floor in floors),
    )
    places: dict[str, tuple[float, float]] = {}
    for number, floor in enumerate(drawn):
        gap = width / (len(floor) + 1)
        for column, room in enumerate(floor):
            places[room] = (COLUMNS.get(room, gap * (column + 1)), 20 + step * number)
    for room, other in arrows(set(places), imports()):
        (x1, y1), (x2, y2) = places[room], places[other]
        if y1 == y2:
            side = 58 if x1 < x2 else -58
            p.path(f"M{x1 + side:g} {y1 + 17:g} H{x2 - side:g}")
        else:
            lean = max(-46.0, min(46.0, (x2 - x1) / 4))
            p.path(f"M{x1 + lean:g} {y1 + 34:g} L{x2 - lean:g} {y2 - 1:g}")
    for room, (x, y) in places.items():
        inside = room not in PACKAGES
        p.box(x - 58, y, 116, 34, room, style="box" if inside else "worker")
    p.box(
        40,
        20 + step * len(drawn),
        width - 80,
        40,
        ", ".join(sorted(ground)),
        "what every room may import",
    )
    return p


PICTURES: dict[str, Callable[[], Picture]] = {
    "flow.svg": flow,
    "group.svg": group,
    "rooms.svg": rooms,
    "states.svg": states,
    "trajectory.svg": trajectory,
    "worker-death.svg": worker_death,
}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw().render(), encoding="utf-8")
