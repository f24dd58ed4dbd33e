"""`python -m hermes_queue.broker.worker`: the workers that this package starts itself.

Before Celery's own command reads its arguments, it loads a REPL and the plugins of every
installed package (Flower's web server among them). That costs a second of processor time, which
the workers of embedded runs and of the quarantine need not spend.
"""

from __future__ import annotations

import sys


def command(name: str, slots: int, log_level: str) -> list[str]:
    """Return the command that starts a worker. `name` is completed by the host's name."""
    return [sys.executable, "-m", __name__, name, str(slots), log_level]


def main() -> int:
    """Run a worker until a signal ends it; returns the exit code."""
    name, slots, log_level = sys.argv[1:]
    from celery.utils.nodenames import default_nodename, host_format

    from hermes_queue.broker.app import app

    worker = app.Worker(
        hostname=host_format(default_nodename(f"{name}@%h")),
        concurrency=int(slots),
        loglevel=log_level.upper(),
        without_gossip=True,
        without_mingle=True,
    )
    worker.start()
    return int(worker.exitcode or 0)


if __name__ == "__main__":
    raise SystemExit(main())
