"""`python -m hermes_queue.broker.worker`: the workers that we start ourselves.

Celery's own command loads a REPL and the plugins of every package that has some (Flower's web
server among them) before it looks at its arguments. That costs a second of processor time, and
nobody types anything at the workers of embedded runs and of the quarantine.
"""

from __future__ import annotations

import argparse
import sys


def command(name: str, slots: int, log_level: str) -> list[str]:
    """The command that starts one.

    Args:
        name: of the node; the host's name is added.
        slots: trajectories at once.
        log_level: of its log, which goes to stderr.
    """
    return [sys.executable, "-m", __name__, name, str(slots), log_level]


def main() -> int:
    """Be a worker until a signal ends it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hermes_queue.broker.worker")
    parser.add_argument("name")
    parser.add_argument("slots", type=int)
    parser.add_argument("log_level")
    arguments = parser.parse_args()
    from celery.utils.nodenames import default_nodename, host_format

    from hermes_queue.broker.app import app

    worker = app.Worker(
        hostname=host_format(default_nodename(f"{arguments.name}@%h")),
        concurrency=arguments.slots,
        loglevel=arguments.log_level.upper(),
        without_gossip=True,
        without_mingle=True,
    )
    worker.start()
    code: int | None = worker.exitcode
    return code or 0


if __name__ == "__main__":
    raise SystemExit(main())
