"""What the viewer's index costs: `python -m benchmarks.plugins.view.view_index --help`.

Two archives are made: `--records` records of about 75 KB (323 KB as JSON) with tokens, for the
speed of reading, and `--rows` small ones, for lists. Each phase runs in a process of its own, and
its figures are CPU seconds of that process; memory is its resident size at the end. The goals are
those of docs/plugins/view.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgpack
import zstandard

from benchmarks.processes import ROOT
from hermes_plugins.view.index.index import Index
from hermes_plugins.view.sources.archive import ArchiveSource
from hermes_plugins.view.sources.base import RecordSource
from hermes_plugins.view.sources.jsonl import JsonlSource
from hermes_queue.bodies.codec import encode_record
from hermes_queue.models import (
    AgentSpec,
    FunctionCall,
    Message,
    ScoredTrajectory,
    TokenSequence,
    ToolCall,
    ToolCallCounts,
    Turn,
    Usage,
)
from hermes_queue.results.archive import ArchiveSink
from hermes_queue.results.stored import StoredGroup

GROUP = 8
NOW = 1_790_000_000.0
_CHANCE = random.Random(18)
_WORDS = ["".join(_CHANCE.choices("abcdefghijklmnopqrstuvwxyz_", k=_CHANCE.randint(2, 11)))
          for _ in range(6000)]  # fmt: skip


def text(length: int) -> str:
    """About `length` characters of words and numbers, which compress as code does."""
    words = _CHANCE.choices(_WORDS, k=length // 8)
    return " ".join(f"{word}\n" if at % 9 == 0 else word for at, word in enumerate(words))


def record(number: int) -> ScoredTrajectory:
    """One of 75 KB: 24 turns with tool output and tokens."""
    messages = [
        Message(role="system", content=text(1500)),
        Message(role="user", content=text(4000)),
    ]
    turns, ids = [], [_CHANCE.randrange(150_000) for _ in range(1500)]
    for turn in range(24):
        call = FunctionCall(name="terminal", arguments=json.dumps({"command": text(160)}))
        calls = (ToolCall(id=f"c{turn}", function=call),)
        messages.append(Message(role="assistant", content=text(200), tool_calls=calls))
        messages.append(Message(role="tool", content=text(2600), tool_call_id=f"c{turn}"))
        sampled = tuple(_CHANCE.randrange(150_000) for _ in range(90))
        ids += [*sampled, *(_CHANCE.randrange(150_000) for _ in range(120))]
        logprobs = tuple(-_CHANCE.random() for _ in sampled)
        turns.append(Turn(completion_ids=sampled, logprobs=logprobs, policy_version="12"))
    mask = tuple(at % 3 == 0 for at in range(len(ids)))
    return ScoredTrajectory(
        **_names(number),
        agent=AgentSpec(kind="openai", model="qwen3-8b"),
        attempt=1,
        epoch=1,
        status="completed",
        stop_reason="submitted",
        score=float(_CHANCE.random() < 0.4),
        messages=tuple(messages),
        turns=tuple(turns),
        sequences=(
            TokenSequence(
                ids=tuple(ids), loss_mask=tuple(map(int, mask)), logprobs=tuple(-0.1 for _ in ids)
            ),
        ),
        tool_calls=ToolCallCounts(attempted=24, schema_valid=24, ok=22, error=2),
        usage=Usage(prompt_tokens=90_000, completion_tokens=2160),
        stage_seconds={"setup": 4.0, "agent": 60.0, "verify": 12.0},
        report={"reason": "tests_fail", "patch": text(900), "patch_bytes": 900, "flags": []},
        created=NOW + number,
    )


def small(number: int) -> dict[str, Any]:
    """One of a kilobyte, as it is packed: another score, cost, time and stop reason each."""
    turns = _CHANCE.randint(1, 60)
    return {
        **_names(number),
        "schema_version": 1,
        "agent": {"kind": "openai", "model": f"model-{number % 3}"},
        "attempt": 1 + (number % 20 == 0),
        "epoch": 1,
        "status": "completed" if number % 25 else "failed",
        "stop_reason": _CHANCE.choice(["submitted", "max_turns", "no_tool_call"]),
        "score": float(_CHANCE.random() < 0.4) if number % 25 else None,
        "failure": None
        if number % 25
        else {"cause": "sandbox", "stage": "setup", "type": "SlotLost", "message": text(80)},
        "messages": [{"role": "user", "content": text(300)}, {"role": "assistant", "content": "x"}],
        "turns": [{}] * turns,
        "tool_calls": {"attempted": turns, "schema_valid": turns, "ok": turns - 1, "error": 1},
        "usage": {"prompt_tokens": turns * 3000, "completion_tokens": turns * 90},
        "cost_usd": turns * 0.0007 + _CHANCE.random() * 0.01,
        "stage_seconds": {"setup": _CHANCE.random() * 9, "agent": turns * 2 + _CHANCE.random()},
        "policy_oldest": str(number // 4000),
        "policy_newest": str(number // 4000),
        "report": {"reason": "tests_fail", "flags": ["patch: conftest"] * (number % 40 == 0)},
        "created": NOW + number + _CHANCE.random(),
    }


def _names(number: int) -> dict[str, Any]:
    run, group = f"run-{number // 20_000}", number // GROUP
    return {
        "run_id": run,
        "group_id": f"{run}.{group:020x}",
        "trajectory_id": f"{run}.{group:020x}.{number % GROUP}",
        "sample_index": number % GROUP,
        "group_size": GROUP,
        "env": "swe_smith",
        "instance_id": f"owner__repo.{group % 3000:08x}.func__{group % 7}",
    }


def archive(directory: Path, bodies: Iterator[tuple[dict[str, Any], bytes]]) -> float:
    """Write groups of `GROUP` bodies; returns the mean size of a body in bytes."""
    sink, size, count = ArchiveSink(directory), 0, 0
    group: dict[str, bytes] = {}
    for names, body in bodies:
        group[names["trajectory_id"]] = body
        size, count = size + len(body), count + 1
        if len(group) == GROUP:
            fields = {
                **{n: names[n] for n in ("run_id", "group_id", "env", "instance_id")},
                "size": str(GROUP),
                "members": json.dumps(list(group)),
                "finished": str(NOW),
            }
            sink.store([StoredGroup(fields, group)])
            group = {}
    sink.close()
    return size / count


def prepare(folder: Path, rows: int, records: int) -> dict[str, float]:
    """The archives, and the records once more as JSON lines."""
    made = [record(number) for number in range(records)]
    lines = [each.to_json() for each in made]
    (folder / "large.jsonl").write_text("\n".join(lines) + "\n")
    compress = zstandard.ZstdCompressor(level=1).compress
    body = archive(folder / "large", ((_names(n), encode_record(r)) for n, r in enumerate(made)))
    packed = ((_names(n), compress(msgpack.packb(small(n)))) for n in range(rows))
    small_body = archive(folder / "small", packed)
    json_bytes = sum(map(len, lines)) / records
    return {"body_bytes": body, "json_bytes": json_bytes, "small_body_bytes": small_body}


def opened(folder: Path, name: str) -> Index:
    """The index of one of the sources."""
    path = folder / name
    source: RecordSource = JsonlSource(path) if path.suffix else ArchiveSource(path)
    return Index(folder / "indexes" / f"{path.stem}{path.suffix}-index.sqlite", [source])


def read(folder: Path, name: str) -> dict[str, float]:
    """Read a source for the first time."""
    index = opened(folder, name)
    cpu, wall = time.process_time(), time.perf_counter()
    index.refresh()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    count = index.count()
    size = sum(path.stat().st_size for path in (folder / "indexes").glob(f"{name}-index*"))
    index.close()
    facts = {"rows": count, "cpu_s": cpu, "wall_s": wall, "rows_per_cpu_s": count / cpu}
    return {**facts, "index_mb": size / 1e6, "resident_mb": resident_mb()}


def restart(folder: Path, name: str) -> dict[str, float]:
    """Open an index of which nothing is new."""
    wall, cpu = time.perf_counter(), time.process_time()
    index = opened(folder, name)
    index.refresh()
    rows = len(index.page().rows)
    facts = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    index.close()
    return {**facts, "rows": rows}


def queries(folder: Path, name: str) -> dict[str, float]:
    """Pages, sorts, filters, histograms and groups: milliseconds of CPU, the median of five."""
    index = opened(folder, name)
    upto = index.upto()
    found: dict[str, float] = {}

    def timed(label: str, call: Callable[[], Any]) -> Any:
        times = []
        for _ in range(5):
            begun = time.thread_time()
            answer = call()
            times.append((time.thread_time() - begun) * 1000)
        found[f"{label}_ms"] = median(times)
        return answer

    timed("first_page", lambda: index.page(upto=upto))
    deep = index.page(upto=upto, limit=500)
    for _ in range(index.count() * 9 // 10 // 500):
        deep = index.page(upto=upto, limit=500, after=deep.next)
    timed("page_at_90_percent", lambda: index.page(upto=upto, after=deep.next))
    for sort in ("score", "-turns", "cost", "-seconds", "instance", "-patch_bytes", "reason"):
        timed(f"sort_{sort}", partial(index.page, upto=upto, sort=sort))
    for label, query in {
        "run": "run:run-1",
        "three": "score:0 turns:>30 stop:max_turns",
        "flag": "flag:*",
        "flag_part": "flag:conftest",
        "text": f'"{_WORDS[7]}"',
        "nothing": "instance:*nosuchthing*",
    }.items():
        timed(f"filter_{label}", partial(index.page, query, upto=upto))
        timed(f"filter_{label}_by_cost", partial(index.page, query, sort="cost"))
    for of in ("score", "turns", "seconds", "tokens", "cost"):
        timed(f"histogram_{of}", partial(index.histogram, "", of, upto=upto))
        timed(f"histogram_{of}_of_run", partial(index.histogram, "run:run-1", of))
    for sort in ("-created", "-std", "mean"):
        timed(f"groups_{sort}", partial(index.groups, sort=sort, upto=upto))
    timed("groups_of_run", lambda: index.groups("run:run-1", sort="-std"))
    timed("runs", index.runs)
    timed("run", lambda: index.run("run-1"))
    middle = deep.rows[0]["id"]
    timed("neighbours", lambda: index.neighbours(middle))
    timed("read_one", lambda: index.read(middle))
    index.close()
    return {**found, "worst_ms": max(found.values()), "resident_mb": resident_mb()}


def grep(folder: Path, name: str) -> dict[str, float]:
    """Look for a text that no record holds."""
    index = opened(folder, name)
    begun = time.process_time()
    page = index.page('grep:"no such text"', grep_s=5)
    cpu = time.process_time() - begun
    index.close()
    return {"scanned": page.scanned or 0, "scanned_per_cpu_s": (page.scanned or 0) / cpu}


def resident_mb() -> float:
    """Resident size of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


PHASES: dict[str, tuple[Callable[[Path, str], dict[str, float]], str]] = {
    "read archive of large records": (read, "large"),
    "read JSON lines of large records": (read, "large.jsonl"),
    "read archive of small records": (read, "small"),
    "restart, nothing new": (restart, "small"),
    "queries": (queries, "small"),
    "grep in large records": (grep, "large"),
}


def measured(name: str, folder: Path) -> dict[str, float]:
    """The figures of a phase, which runs in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.plugins.view.view_index", "--phase", name]
    run = subprocess.run(
        [*command, "--folder", str(folder)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(run.stdout)
    return found


def main() -> None:
    """Run all phases, each in a process of its own, and print their figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--records", type=int, default=800)
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.phase:
        phase, name = PHASES[given.phase]
        print(json.dumps(phase(given.folder, name)))
        return
    folder = given.folder or Path(tempfile.mkdtemp(prefix="view-index-"))
    try:
        found: dict[str, Any] = {"prepared": prepare(folder, given.rows, given.records)}
        for name in PHASES:
            found[name] = measured(name, folder)
            rounded = {key: round(value, 3) for key, value in found[name].items()}
            print(name, json.dumps(rounded, indent=1), flush=True)
        print(json.dumps(found["prepared"]))
    finally:
        if given.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
