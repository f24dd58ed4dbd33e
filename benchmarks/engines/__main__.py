"""Compare fixed caps, the cap that 429s drive, and KV tokens on a simulated engine."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.engines.engine import Engine, Hardware
from benchmarks.engines.fleet import run
from benchmarks.engines.load import LOADS, tasks
from benchmarks.engines.policies import By429, CallCap, FlightCap, KvTokens, Policy

CALLS = (16, 32, 64, 128, 256)
FLIGHTS = (4, 6, 8, 10, 12, 16, 24, 32, 48, 64, 80, 96, 128)
EXAMPLES = """\
how to read it:
  Goodput is finished trajectories per second until 95 % of a list of work is done, the mean of the
  seeds. "short" and "long" are steady loads of one kind, "mixed" has both at once, "changing" has
  them one after another, twice. Of the fixed caps each load's best one is shown, found with the
  same seeds: nobody knows it beforehand. "one cap" is the cap that is best over all loads.

examples:
  the table of docs/engine-pressure.md (some minutes)
    python -m benchmarks.engines
  one load, quickly
    python -m benchmarks.engines --loads changing --seeds 1 --scale 0.2
  a cache of 100,000 tokens and 64 slots
    python -m benchmarks.engines --kv-tokens 100000 --slots 64
"""


def policies() -> dict[str, Callable[[Engine], Policy]]:
    found: dict[str, Callable[[Engine], Policy]] = {"no limit": Policy, "429s": By429}
    found |= {f"calls {cap}": partial(CallCap, cap=cap) for cap in CALLS}
    found |= {f"trajectories {cap}": partial(FlightCap, cap=cap) for cap in FLIGHTS}
    return {**found, "KV tokens": KvTokens}


def measured(
    loads: Sequence[str], seeds: int, scale: float, slots: int, hardware: Hardware
) -> dict[str, dict[str, list[float]]]:
    """Goodput by load, policy and seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for load in loads:
        found[load] = {name: [] for name in policies()}
        for seed in range(1, seeds + 1):
            work = tasks(load, seed, scale)
            for name, policy in policies().items():
                figures = run(work, policy, slots=slots, hardware=hardware)
                found[load][name].append(figures["goodput"])
    return found


def report(found: dict[str, dict[str, list[float]]]) -> list[str]:
    """A table: a row for each load."""
    means = {
        load: {name: statistics.mean(values) for name, values in by_name.items()}
        for load, by_name in found.items()
    }

    def best(kind: str, by_name: dict[str, float]) -> str:
        return max((name for name in by_name if name.startswith(kind)), key=by_name.__getitem__)

    def over_all(kind: str) -> str:
        names = [name for name in policies() if name.startswith(kind)]
        return max(
            names,
            key=lambda name: statistics.geometric_mean(
                by_name[name] / max(by_name.values()) for by_name in means.values()
            ),
        )

    one = over_all("trajectories")
    lines = [
        f"{'load':<10}{'no limit':>10}{'429s':>10}{'best cap of calls':>26}"
        f"{'best cap of trajectories':>32}{'one cap: ' + one:>28}{'KV tokens':>12}"
        f"{'of the best cap':>22}"
    ]
    for load, by_name in means.items():
        calls, flights = best("calls", by_name), best("trajectories", by_name)
        ratios = [
            ours / cap
            for ours, cap in zip(found[load]["KV tokens"], found[load][flights], strict=True)
        ]
        lines.append(
            f"{load:<10}{by_name['no limit']:>10.4f}{by_name['429s']:>10.4f}"
            f"{f'{by_name[calls]:.4f} ({calls})':>26}{f'{by_name[flights]:.4f} ({flights})':>32}"
            f"{by_name[one]:>28.4f}{by_name['KV tokens']:>12.4f}"
            f"{f'{statistics.mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})':>22}"
        )
    return lines


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS, metavar="LOAD")
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--scale", type=float, default=0.5, metavar="X", help="of the work")
    parser.add_argument("--slots", type=int, default=256, metavar="N")
    parser.add_argument("--kv-tokens", type=int, default=Hardware().kv_tokens, metavar="N")
    parser.add_argument("--json", action="store_true", help="print all figures")
    options = parser.parse_args(given)
    found = measured(
        options.loads,
        options.seeds,
        options.scale,
        options.slots,
        Hardware(kv_tokens=options.kv_tokens),
    )
    print(json.dumps(found) if options.json else "\n".join(report(found)))


if __name__ == "__main__":
    main()
