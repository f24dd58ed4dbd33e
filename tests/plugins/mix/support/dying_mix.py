"""`python -m dying_mix FILE EVENT`: serve a mix, and die of SIGKILL at an event.

An event is a request to Redis that is about to be sent, or an answer that has been read.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import redis.connection
from mixes import NothingKnown

from hermes_plugins.mix import checkpoint
from hermes_plugins.mix.document import read_mix
from hermes_plugins.mix.server import MixServer
from hermes_plugins.mix.sources import open_sources
from hermes_queue.ledger import Ledger
from hermes_queue.settings import ProducerSettings

events = 0


def dies(last: int, method: Any, *, before: bool) -> Any:
    def counted(*args: Any, **kwargs: Any) -> Any:
        global events
        if before:
            events += 1
            if events == last:
                os.kill(os.getpid(), signal.SIGKILL)
        answer = method(*args, **kwargs)
        if not before:
            events += 1
            if events == last:
                os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return counted


def main() -> None:
    checkpoint.LEASE_S = 0.05  # whoever comes next need not wait
    checkpoint.POLL_S = 0.03
    document, last = read_mix(Path(sys.argv[1])), int(sys.argv[2])
    sources = {source.name: source for source in open_sources(document)}
    with closing(Ledger.connect()) as ledger:
        connection = redis.connection.AbstractConnection
        connection.send_packed_command = dies(last, connection.send_packed_command, before=True)
        connection.read_response = dies(last, connection.read_response, before=False)
        server = MixServer(
            ledger,
            document,
            rates=NothingKnown(),
            say=lambda _: None,
            stop=threading.Event(),
            settings=ProducerSettings(batch=int(sys.argv[3])),
        )
        assert server.serve(sources)


if __name__ == "__main__":
    main()
