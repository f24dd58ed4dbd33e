"""How long operators wait for `status`, `top`, `run list` and `run show` when much has happened.

Fills a Redis of its own through the ledger's scripts (claim, begin, publish, trim), in pipelines
and without a worker: a run of finished trajectories, whose groups are read and trimmed; jobs that
wait for a worker; groups that wait for a reader. What Redis keeps of the finished run is then
copied as it is, under the ids of further runs, until there are as many as wanted. Then it runs the
commands.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.jobs import LEASE_S, ROW, jobs, record
from benchmarks.measuring import metered
from benchmarks.processes import Server, redis_server
from benchmarks.report import say
from hermes_queue.bodies.codec import encode_record
from hermes_queue.broker.enqueue import enqueue
from hermes_queue.cli.overview import overview
from hermes_queue.ledger import Ledger, transitions
from hermes_queue.models import TrajectoryJob, identity
from hermes_queue.results.trimming import trim
from hermes_queue.settings import ResultSettings

QUICK_S = 2.0
GROUP_SIZE = 4
AT_ONCE = 400
READER = "reader"
FIRST, COPIES = "finished00000", "finished%05d"
COPIED_AT_ONCE = 50
COPY = """
local run, copies, first, last = unpack(ARGV)
for _, key in ipairs(KEYS) do
  local kept, ttl = redis.call('DUMP', key), math.max(0, redis.call('PTTL', key))
  for number = first, last do
    local name = string.gsub(key, run, string.format(copies, number), 1)
    redis.call('RESTORE', name, ttl, kept)
  end
end
"""
SHAPE: dict[str, Any] = {"group_size": GROUP_SIZE, "env": "gsm8k", "item": ROW}
EXAMPLES = """\
examples:
  a million finished, a hundred thousand waiting (some minutes, 1 GB of Redis)
    python -m benchmarks.operators
  roughly, in a minute
    python -m benchmarks.operators --finished 20000 --waiting 2000 --unread 500
"""


@dataclass(frozen=True)
class Timed:
    """One command, at its slowest of three."""

    command: str
    wall_s: float
    cpu_s: float
    """Of the command."""
    redis_cpu_ms: float
    redis_commands: int


class Filler:
    """Makes finished trajectories as workers do, only in larger pipelines."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._settings = ResultSettings(retention_s=0.0)
        one = next(jobs(1, run="template", **SHAPE))
        self._record = record(one, tokens=16, words=16)
        self._body = encode_record(self._record)

    def finish(self, run: str, count: int, *, read: bool = True) -> None:
        """A run whose trajectories are all final; `read`: its groups are read and trimmed."""
        made = list(jobs(count, run=run, **SHAPE))
        for first in range(0, count, AT_ONCE):
            some = made[first : first + AT_ONCE]
            self._ledger.enqueue(run, some, config={"env": "gsm8k", "agent": "nop"})
            self._all([self._begin(job) for job in some])
            self._all([self._publish(job) for job in some])
        if read:
            self._read()

    def copy(self, run: str, name: str, numbers: range) -> None:
        """What Redis keeps of a finished run, as the runs `name` with these numbers."""
        client, prefix = self._ledger.client, self._ledger.prefix
        copy: Any = client.register_script(COPY)
        found = [key for key in client.scan_iter(f"{prefix}*{run}*", count=5000)]
        for first in range(0, len(found), COPIED_AT_ONCE):
            some = found[first : first + COPIED_AT_ONCE]
            copy(keys=some, args=[run, name, numbers.start, numbers.stop - 1])
        listed = self._ledger.key("runs")
        last: Any = client.zscore(listed, run)
        client.zadd(listed, {name % number: last for number in numbers})

    def _all(self, calls: Sequence[Any]) -> None:
        for result in self._ledger.make_all(calls):
            if isinstance(result, Exception):
                raise result

    def _begin(self, job: TrajectoryJob) -> Any:
        name = job.trajectory_id
        return transitions.begin(
            name, 1, owner="bench", lease_s=LEASE_S, nonce=name, results=self._settings
        )

    def _publish(self, job: TrajectoryJob) -> Any:
        return transitions.publish(
            self._record.model_copy(update=identity(job)),
            self._body,
            owner="bench",
            finished_ttl_s=self._settings.finished_ttl_s,
            results=self._settings,
        )

    def _read(self) -> None:
        client: Any = self._ledger.client
        stream = self._ledger.key("results")
        if not client.exists(self._ledger.key(f"consumer-group:{READER}")):
            client.xgroup_create(stream, READER, id="0", mkstream=True)
            client.hset(self._ledger.key(f"consumer-group:{READER}"), "durable", "1")
            client.hset(self._ledger.key(f"consumer-group:{READER}"), "filter", "{}")
        while client.xreadgroup(READER, "one", {stream: ">"}, count=1000, noack=True):
            pass
        while (done := trim(self._ledger, self._settings, interval_s=0.0)) and done.entries:
            pass


def fill(ledger: Ledger, given: argparse.Namespace) -> str:
    """As the options say; returns the id of the run that waits."""
    filler = Filler(ledger)
    size = max(GROUP_SIZE, given.finished // given.runs // GROUP_SIZE * GROUP_SIZE)
    filler.finish(FIRST, size)
    say(f"{size} finished")
    filler.copy(FIRST, COPIES, range(1, given.finished // size))
    say(f"{given.finished // size} runs of them")
    if given.unread:
        filler.finish("unread", GROUP_SIZE * given.unread, read=False)
        # Half of them are delivered, so that the reader's place is in their middle.
        ledger.client.xreadgroup(
            READER, "one", {ledger.key("results"): ">"}, count=given.unread // 2, noack=True
        )
    enqueue(jobs(given.waiting, run="waiting", **SHAPE), ledger=ledger)
    return "waiting"


def timed(server: Server, run: str, *, times: int = 3) -> Iterator[Timed]:
    """The commands, each as a process of its own; and one refresh of `top`, without its start."""
    environment = {**os.environ, "HERMES_QUEUE_REDIS_URL": server.url, "COLUMNS": "120"}
    program = str(Path(sys.executable).with_name("hermes-queue"))
    for words in (["status"], ["top", "--once"], ["run", "list"], ["run", "show", run]):

        def command(words: Sequence[str] = words) -> None:
            subprocess.run([program, *words], check=True, env=environment, capture_output=True)

        yield slowest(f"hermes-queue {' '.join(words)}", command, server, times)
    with closing(Ledger.connect(url=server.url)) as ledger:
        yield slowest("a refresh of top", lambda: overview(ledger), server, times)


def slowest(name: str, command: Callable[[], object], server: Server, times: int) -> Timed:
    """Of some repetitions."""
    found = []
    for _ in range(times):
        before = server.number("stats", "total_commands_processed")
        with metered(redis=server.pid) as meter:
            command()
        asked = server.number("stats", "total_commands_processed") - before
        own = meter.cpu_s["here"]
        found.append(Timed(name, meter.wall_s, own, 1000 * meter.cpu_s["redis"], int(asked)))
    return max(found, key=lambda each: each.wall_s)


def table(found: Sequence[Timed]) -> Iterator[str]:
    """The lines that people read."""
    yield f"{'command':<28}{'wall':>9}{'CPU':>9}{'Redis CPU':>12}{'commands':>10}"
    for each in found:
        yield (
            f"{each.command:<28}{each.wall_s:>7.2f} s{each.cpu_s:>7.2f} s"
            f"{each.redis_cpu_ms:>9.0f} ms{each.redis_commands:>10}"
        )


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operators",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    options = {
        "finished": (1_000_000, "trajectories that are final"),
        "runs": (200, "runs that they belong to"),
        "waiting": (100_000, "jobs of one more run that wait for a worker"),
        "unread": (20_000, "groups of one more run that wait for a reader"),
    }
    for name, (default, text) in options.items():
        text += f" (default: {default})"
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=text)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Fill, run, print; 1 if a command took more than two seconds of processor time."""
    options = parsed(given)
    with redis_server() as server, closing(Ledger.connect(url=server.url)) as ledger:
        server.client.config_set("appendonly", "no")  # the commands only read
        empty = server.number("memory", "used_memory")
        waiting = fill(ledger, options)
        used = server.number("memory", "used_memory") - empty
        keys = ledger.client.dbsize()
        found = list(timed(server, waiting))
    print(f"{keys} keys, {used / 1e6:.0f} MB of Redis; load {os.getloadavg()[0]:.1f}")
    print(*table(found), sep="\n")
    if options.json:
        rows = [asdict(each) for each in found]
        text = json.dumps(
            {"options": vars(options), "keys": keys, "bytes": used, "rows": rows}, default=str
        )
        options.json.write_text(text + "\n", encoding="utf-8")
    return int(any(each.cpu_s > QUICK_S for each in found))


if __name__ == "__main__":
    sys.exit(main())
