"""Measure what hermes-queue costs, beside other systems that do the same in the same minutes."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import Part, measure
from benchmarks.processes import ROOT
from benchmarks.report import HISTORY, add_to_history, circumstances, say, table

_HERE = Path(__file__).parent
_FOUND = (*_HERE.glob("parts/[a-z]*.py"), *_HERE.glob("plugins/*/parts/[a-z]*.py"))
PARTS = {path.stem: path for path in sorted(_FOUND, key=lambda path: path.stem)}
"""Files of all parts by name, those of plugins among them."""
EXAMPLES = """\
how to read it:
  Every round gives each side of a case one turn, in alternating order. A figure is the median of
  the rounds, with the smallest and largest one; a ratio is taken within each round (ours : other),
  so that what else the machine does meets both. "ms CPU" counts every process of a side and is
  what to compare on a busy machine; "busy elsewhere" says how busy it was. Other systems run in
  virtual environments of their own, from benchmarks/peers/*.txt, made at the first run; where one
  cannot be installed, the report says so and goes on.

examples:
  everything, into results/benchmarks/ (a quarter of an hour)
    make bench
  two parts; the same by hand, quickly and roughly
    make bench PARTS="factory codec"
    python -m benchmarks factory codec --rounds 1 --scale 0.2
  what factory compares, side by side
    python -m benchmarks --about factory
"""


def docstring(name: str) -> str:
    """What the part's module says about it, without importing it."""
    return PARTS[name].read_text(encoding="utf-8").split('"""')[1]


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    width = max(map(len, PARTS))
    listed = [f"  {name:<{width}}  {docstring(name).splitlines()[0]}" for name in PARTS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(["parts:", *listed, "", EXAMPLES]),
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="part to run (default: all)")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each part (default: 3)")
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="X", help="factor for all counts (default: 1)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="where the results go (default: results/benchmarks/TIME.json)",
    )
    parser.add_argument(
        "--history",
        action="store_true",
        help=f"also append a line to {HISTORY.relative_to(ROOT)}, as every release does",
    )
    parser.add_argument("--about", action="store_true", help="say what the parts do, and end")
    arguments = parser.parse_args(given)
    if unknown := set(arguments.parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if arguments.scale <= 0 or (arguments.rounds or 1) < 1:
        parser.error("--rounds and --scale must be above 0")
    return arguments


def run(name: str, scale: float, rounds: int | None) -> dict[str, Any]:
    """The results of one part; `failed` with the reason if it broke off."""

    def progress(text: str) -> None:
        say(f"{name}, {text}")

    module = ".".join(PARTS[name].relative_to(_HERE.parent).with_suffix("").parts)
    try:
        part: Part = importlib.import_module(module).PART
        return measure(part, scale=scale, rounds=rounds or part.rounds, say=progress)
    except Exception as error:  # noqa: BLE001 - the other parts go on
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"}


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a part failed."""
    arguments = parsed(given)
    chosen = arguments.parts or [*PARTS]
    if arguments.about:
        for name in chosen:
            print(f"{name}\n\n{docstring(name)}\n")
        return 0
    result = circumstances()
    default = ROOT / "results" / "benchmarks" / f"{result['began'].replace(':', '')}.json"
    path: Path = arguments.json or default
    path.parent.mkdir(parents=True, exist_ok=True)
    result |= {"scale": arguments.scale, "parts": {}}
    for name in chosen:
        part = result["parts"][name] = run(name, arguments.scale, arguments.rounds)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        lines = [f"{name}: {part['failed']}"] if "failed" in part else table(name, part)
        print(*lines, "", sep="\n", flush=True)
    print(f"results: {path}")
    if arguments.history:
        add_to_history(result)
    return int(any("failed" in part for part in result["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
