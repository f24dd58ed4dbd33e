"""`python -m tests.chaos`: run the harness and judge the run."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from hermes_queue.errors import EXIT_FAILED, EXIT_INTERRUPTED
from hermes_queue.sandbox.local.registry import HostRegistry
from hermes_queue.sandbox.local.snapshots import UNFINISHED_S
from tests.chaos.fleet import WITNESS, DoomedFleet
from tests.chaos.judgement import Judgement
from tests.chaos.orphans import time_to_last_orphan
from tests.chaos.producer import GROUP_SIZE, RUN
from tests.chaos.schedule import Schedule

DRAIN_S = 240.0
"""Time for the undisturbed fleet to finish everything; poison jobs add leases."""
DRAIN_LEASES = 8
REAP_S = 90.0
"""Time for a worker to find what a dead one has left on this host."""


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Kill workers, Redis, consumers and the producer under load, then compare what "
        "verifiers, stream and consumers wrote down. Exit code 1 when anything was lost, doubled, "
        "mis-scored or left behind.",
        epilog="example: python -m tests.chaos --minutes 10 --seed 7",
    )
    for name, default, what in (
        ("minutes", 5.0, "minutes of chaos"),
        ("seed", 1, "seed of the schedule"),
        ("workers", 3, "worker processes"),
        ("concurrency", 6, "trajectories per worker"),
        ("lease", 4.0, "lease in seconds; that of workers is 40"),
        ("rate", 1.25, "groups of 4 per second"),
        ("interval", 6.0, "seconds between two events"),
        ("graders", 0, "processes that grade what the workers' agents have done"),
        ("prefetch", 0, "trajectories that each worker sets up ahead"),
    ):
        text = f"{what} (default: {default:g})"
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    parser.add_argument(
        "--url", default="", help="use this Redis, under a separate prefix; it is never killed"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--keep", action="store_true", help="keep logs and journals")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run, judge, print; returns the exit code."""
    arguments = parse(argv)
    directory = Path(tempfile.mkdtemp(prefix="hermes-chaos-"))
    directory.chmod(0o755)  # slots run as other users and have to reach the cache
    fleet = DoomedFleet(
        directory,
        arguments.workers,
        arguments.concurrency,
        arguments.lease,
        arguments.url,
        arguments.graders,
        arguments.prefetch,
    )
    groups = max(1, int(arguments.minutes * 60 * arguments.rate))
    schedule = Schedule(fleet, arguments.seed, arguments.interval)
    judgement = Judgement(fleet, groups, arguments.seed)
    try:
        fleet.start()
        fleet.produce(groups=groups, rate=arguments.rate, seed=arguments.seed)
        rage(fleet, schedule, time.monotonic() + 60 * arguments.minutes)
        schedule.settle()
        drained = drain(fleet, schedule, groups)
        wait_for_reapers(fleet)
        fleet.stop()
        ledger = fleet.connect()
        judgement.judge(ledger)
        judgement.problems += [f"{name}: never ran again" for name in schedule.orphans]
        if drained:
            count_orphans(fleet, judgement)
        else:
            judgement.problems.insert(0, "jobs were unfinished long after the last kill")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; all processes that were started are stopped\n")
        return EXIT_INTERRUPTED
    finally:
        fleet.stop()
        if fleet.redis:
            fleet.redis.stop()
    report(arguments, schedule, judgement)
    if judgement.problems or arguments.keep:
        sys.stderr.write(f"logs, journal and the consumers' files: {directory}\n")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return EXIT_FAILED if judgement.problems else 0


def count_orphans(fleet: DoomedFleet, judgement: Judgement) -> None:
    """Kill everything once more, and time the cleanup of what that leaves."""
    try:
        took_s, count = time_to_last_orphan(fleet)
    except TimeoutError as error:
        judgement.problems.append(str(error))
        return
    judgement.figures["processes at the last kill"] = count
    judgement.figures["last orphan gone, s"] = round(took_s, 1)


def rage(fleet: DoomedFleet, schedule: Schedule, until: float) -> None:
    """Let the schedule act until `until` (monotonic seconds)."""
    reported = time.monotonic()
    while time.monotonic() < until:
        schedule.tick()
        if time.monotonic() - reported > 15:
            reported = time.monotonic()
            events = ", ".join(f"{n} {count}" for n, count in sorted(schedule.counts.items()))
            sys.stderr.write(f"{until - reported:4.0f} s to go; {events}\n")
        time.sleep(0.1)


def drain(fleet: DoomedFleet, schedule: Schedule, groups: int) -> bool:
    """Wait until the producer, the workers and the readers have nothing left to do."""
    ledger = fleet.connect()
    give_up = time.monotonic() + DRAIN_S + DRAIN_LEASES * fleet.lease_s
    while time.monotonic() < give_up:
        schedule.watch()
        status = ledger.run_status(RUN)
        enqueued = fleet.producer is not None and not fleet.producer.alive
        everybody = ledger.client.xinfo_groups(ledger.key("results"))
        known = [group for group in everybody if group["name"].decode() != WITNESS]
        unread = any(
            g["pending"]
            or ledger.client.xrange(
                ledger.key("results"), min=f"({g['last-delivered-id'].decode()}", count=1
            )
            for g in known
        )
        # A worker killed between the lease and the acknowledgement leaves its message to the
        # visibility timeout, which may end long after another worker has finished the job.
        taken = ledger.client.exists(ledger.key("unacked"))
        published = status.done and status.groups >= groups
        if enqueued and published and known and not unread and not taken:
            return True
        time.sleep(0.5)
    return False


def wait_for_reapers(fleet: DoomedFleet, *, patience_s: float = REAP_S) -> None:
    """Wait until the workers have ended the sandboxes of dead ones, and deleted their copies.

    What stays is judged. Copies look old at once: nobody makes any now, and workers delete none
    that is young. The last to die is a worker in quarantine, whose job is buried at once: that may
    be all that the run has still waited for.
    """
    registry, give_up = HostRegistry(fleet.cache), time.monotonic() + patience_s
    long_ago = time.time() - 2 * UNFINISHED_S
    for path in fleet.copies():
        with suppress(FileNotFoundError):  # a worker has just deleted it
            os.utime(path, (long_ago, long_ago))
    while (registry.abandoned() or fleet.copies()) and time.monotonic() < give_up:
        time.sleep(0.1)


def report(arguments: argparse.Namespace, schedule: Schedule, judgement: Judgement) -> None:
    """Print events, figures, recovery times and problems."""
    times = schedule.recovery_s
    recovery = {}
    if times:
        cuts = statistics.quantiles(times, n=20) if len(times) > 1 else times * 19
        recovery = {"p50": cuts[9], "p95": cuts[18], "max": max(times)}
    kills = sum(n for name, n in schedule.counts.items() if name.startswith("kill"))
    result = {
        "seed": arguments.seed,
        "minutes": arguments.minutes,
        "kills": kills,
        "events": dict(schedule.counts),
        "expected": int(arguments.minutes * 60 * arguments.rate) * GROUP_SIZE,
        **judgement.figures,
        "reruns after a kill": len(times),
        "recovery_s": {name: round(value, 1) for name, value in recovery.items()},
        "problems": judgement.problems,
    }
    if arguments.json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    for name, value in result.items():
        if name != "problems":
            sys.stdout.write(f"{name:<28} {value}\n")
    for problem in judgement.problems[:50]:
        sys.stdout.write(f"PROBLEM  {problem[:300]}\n")
    sys.stdout.write(f"{len(judgement.problems)} problems\n")


if __name__ == "__main__":
    sys.exit(main())
