"""What a run of the benchmarks says and leaves: progress, a table, JSON, a line in the history."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.processes import PEERS, ROOT, versions_of
from hermes_queue.broker.embedded import find_redis_server

HISTORY = ROOT / "benchmarks" / "history.jsonl"
OURS = "celery hiredis kombu modal msgpack openai pyarrow pydantic redis zstandard".split()
PEER_NAMES = "celery dramatiq harbor inspect-ai taskiq taskiq-redis".split()


def say(text: str) -> None:
    """Progress, with the time of day."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def circumstances() -> dict[str, Any]:
    """Machine, load, versions, commit: what a figure cannot be read without."""
    return {
        "format": 1,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "version": _version("hermes-queue"),
        "commit": _output("git", "rev-parse", "HEAD"),
        "changed_files": len(_output("git", "status", "--porcelain").splitlines()),
        "machine": {
            "cpu": _cpu(),
            "processors": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
            "kernel": platform.release(),
            "load": [round(load, 2) for load in os.getloadavg()],
        },
        "versions": {
            "python": platform.python_version(),
            "redis-server": _output(find_redis_server(), "--version").partition("v=")[2].split()[0],
            **{name: _version(name) for name in OURS},
        },
        "peers": {lock.stem: _peers(lock) for lock in sorted(PEERS.glob("*.txt"))},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""  # no git here
    return done.stdout.strip()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _peers(lock: Path) -> list[str]:
    return [pin for pin in versions_of(lock) if pin.partition("==")[0] in PEER_NAMES]


def table(name: str, part: Mapping[str, Any]) -> Iterator[str]:
    """The lines that people read."""
    before, after = part["load"]
    yield f"{name}: {part['rounds']} rounds, median (smallest to largest); load {before} to {after}"
    for case, found in part["cases"].items():
        yield f"  {case}"
        for side, figures in found["sides"].items():
            yield f"    {side:<26}{_figures(part['unit'], figures)}"
            facts = [f"{fact} {_short(s['median'])}" for fact, s in figures["facts"].items()]
            for start in range(0, len(facts), 4):
                yield f"      {', '.join(facts[start : start + 4])}"
        for ratio in found["ratios"]:
            line = f"    {ratio['side']} : {ratio['to']}: {_spread(ratio['rate'])} x the rate"
            yield line + (f", {_spread(ratio['cpu'])} x the CPU" if "cpu" in ratio else "")
    for side, reason in part["missing"].items():
        yield f"  not measured: {side}: {reason}"


def _figures(unit: str, figures: Mapping[str, Any]) -> str:
    elsewhere = f"{figures['busy_elsewhere']['median']:.1f} processors busy elsewhere"
    if "per_s" not in figures:
        return elsewhere
    rate, cpu = _spread(figures["per_s"]), _spread(figures["cpu_ms"])
    return f"{rate} /s   {cpu} ms CPU a {unit}   {elsewhere}"


def _spread(spread: Mapping[str, float]) -> str:
    middle, least, most = (_short(spread[name]) for name in ("median", "min", "max"))
    return middle if least == most else f"{middle} ({least} to {most})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def add_to_history(result: Mapping[str, Any], path: Path = HISTORY) -> None:
    """Append the results as one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result, separators=(",", ":")) + "\n")
