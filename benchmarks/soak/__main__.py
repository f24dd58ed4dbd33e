"""Run no-op trajectories for a long time, sample everything that could grow, and judge it.

One Redis with AOF, one worker of 64 slots, a consumer, a producer that stays 4,000 jobs ahead, in
runs of 20,000 that are purged once they have ended. Beside it a second worker runs real rows of
swe_smith one by one (four of them, oracle, local sandbox, a cache of its own), so that the
repository cache, slots and assets are in use. What Redis remembers of finished trajectories expires
after a minute instead of a week, and results are kept for a minute instead of an hour, so that both
ends are seen.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import noop
from benchmarks.processes import ROOT, Server, reader, redis_server, worker
from benchmarks.report import circumstances, say
from benchmarks.soak.samples import Sampler, floor
from benchmarks.soak.trends import LEAST, Trend, trend
from benchmarks.soak.work import Producer
from hermes_queue.ledger import Ledger

AT_ONCE = 64
ROWS = 4
SHORT = {"HERMES_QUEUE_RESULTS_FINISHED_TTL_S": "60", "HERMES_QUEUE_RESULTS_RETENTION_S": "60"}
DRAIN_S = PATIENCE_S = 300.0
EXAMPLES = """\
how to read it:
  flat     over the second half it rose by no more than 5 %, or by what is noise for its kind
  bounded  it rose or swings, but was never higher than in the first half
  grows    neither; the exit code is then 1. The archive is judged by bytes for each trajectory.
  What Redis keeps for a minute follows the rate: where "per_s" rises because other programs have
  ended, so do memory, keys and groups.

examples:
  half an hour and a million trajectories, whichever takes longer
    make soak
  ten minutes, whatever they finish
    python -m benchmarks.soak --minutes 10 --trajectories 1
"""


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    parser.add_argument("--minutes", type=float, default=30, metavar="N",
                        help="at least so long (default: 30)")  # fmt: skip
    parser.add_argument("--trajectories", type=int, default=1_000_000, metavar="N",
                        help="and at least so many finished (default: 1000000)")  # fmt: skip
    parser.add_argument("--every", type=float, default=15, metavar="SECONDS",
                        help="between two samples (default: 15)")  # fmt: skip
    parser.add_argument("--graded", type=int, default=100, metavar="N",
                        help="real trajectories beside them (default: 100)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE",
                        help="all samples (default: results/soak/TIME.json)")  # fmt: skip
    options = parser.parse_args(given)
    if options.every <= 0 or 60 * options.minutes < LEAST * options.every:
        parser.error(f"--minutes must be long enough for {LEAST} samples")
    return options


def enqueue_graded(server: Server, count: int) -> None:
    """Real rows, for the second worker: few ones, so that the cache has all of them soon."""
    samples = max(1, count // ROWS)
    command = [sys.executable, "-m", "producers.swe_smith", "--items", str(ROWS)]
    command += ["--group-size", str(samples), "--lane", "graded", "--run-id", "graded"]
    environment = {**os.environ, "HERMES_QUEUE_REDIS_URL": server.url}
    subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)


def soak(options: argparse.Namespace) -> list[dict[str, float]]:
    """Run; all samples, each with `at_s` and `finished`."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hq-soak-")))
        directory.chmod(0o755)
        server = stack.enter_context(redis_server(rewrites=True))
        # Of hours on a machine that may be busy, no slow answer shall be the end.
        ledger = stack.enter_context(closing(Ledger.connect(url=server.url, timeout_s=PATIENCE_S)))
        paths = {"ARCHIVE_DIRECTORY": "archive", "PATHS_SPOOL": "spool", "PATHS_CACHE": "cache"}
        given = {f"HERMES_QUEUE_{name}": f"{directory}/{where}" for name, where in paths.items()}
        given |= SHORT
        running = stack.enter_context(worker(server, given | noop.WORKER, concurrency=AT_ONCE))
        consumer = stack.enter_context(reader(server, "trainer"))
        pids = {"worker": running.pid, "consumer": consumer.pid}
        processes = [running, consumer]
        if options.graded:
            lane = {"HERMES_QUEUE_WORKER_LANES": "graded"}
            grader = stack.enter_context(worker(server, given | lane, concurrency=1))
            pids["grader"] = grader.pid
            processes.append(grader)
            enqueue_graded(server, options.graded)
        producer = Producer(ledger)
        producer.start()
        samples = list(
            sampled(options, Sampler(server, ledger, directory, pids), producer, processes)
        )
        producer.stop()
        producer.join()
        if not producer.drained(DRAIN_S):
            raise RuntimeError(f"{producer.sent} sent, only {producer.finished} finished")
        graded = ledger.run_status("graded")
    say(f"{samples[-1]['finished']:.0f} finished; graded: {graded.finished} of {graded.total}")
    return samples


def sampled(
    options: argparse.Namespace,
    sampler: Sampler,
    producer: Producer,
    processes: Sequence[subprocess.Popen[str]],
) -> Iterator[dict[str, float]]:
    """Samples until time and number are reached; raises what went wrong."""
    began = time.monotonic()
    due = began
    while True:
        due += options.every
        time.sleep(max(0.0, due - time.monotonic()))
        for each in processes:
            if each.poll() is not None:
                raise RuntimeError(f"{each.args!r} ended with exit code {each.returncode}")
        if producer.error:
            raise producer.error
        at_s, finished = time.monotonic() - began, producer.finished
        found = {"at_s": at_s, "finished": finished, **sampler.take(finished)}
        say(", ".join(f"{name} {value:,.6g}" for name, value in found.items()))
        yield found
        if at_s >= 60 * options.minutes and finished >= options.trajectories:
            return


def trends(samples: Sequence[Mapping[str, float]]) -> dict[str, Trend]:
    """The verdicts, by quantity; the first samples may lack those that need two."""
    names = [name for name in samples[-1] if name not in ("at_s", "finished")]
    return {
        name: trend([(s["at_s"], s[name]) for s in samples if name in s], floor=floor(name))
        for name in names
    }


def table(found: Mapping[str, Trend]) -> Iterator[str]:
    """The lines that people read."""
    yield f"{'second half':<24}{'median':>12}{'least':>12}{'most':>12}{'rise':>12}  verdict"
    for name, each in found.items():
        numbers = (each.level, each.least, each.most, each.rise)
        yield f"{name:<24}" + "".join(f"{n:>12,.5g}" for n in numbers) + f"  {each.verdict}"


def main(given: Sequence[str] | None = None) -> int:
    """Run and judge; 1 if anything grows."""
    options = parsed(given)
    result: dict[str, Any] = circumstances()
    result["samples"] = samples = soak(options)
    found = trends(samples)
    result["trends"] = {name: asdict(each) for name, each in found.items()}
    default = ROOT / "results" / "soak" / f"{result['began'].replace(':', '')}.json"
    path: Path = options.json or default
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    last = samples[-1]
    print(f"{last['finished']:,.0f} trajectories in {last['at_s'] / 60:.1f} minutes; "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    print(*table(found), sep="\n")
    print(f"samples: {path}")
    growing = [name for name, each in found.items() if each.verdict == "grows"]
    print(f"grows: {', '.join(growing)}" if growing else "nothing grows")
    return int(bool(growing))


if __name__ == "__main__":
    sys.exit(main())
