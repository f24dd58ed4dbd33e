"""Our orchestrator with a stand-in for prime-rl: prime_rl_process.py KILL OPTION...

It kills itself with SIGKILL at KILL: `journaled:3` (the batch's files are not in place), or
`written:3`; "" = never.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import prime_rl_double

prime_rl_double.install()
from hermes_plugins.trainers import prime_rl  # noqa: E402


def main() -> None:
    kill, write = sys.argv[1], prime_rl._Orchestrator._write

    def passes(point: str) -> None:
        if point == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def killed(self: Any, step: int, groups: Any) -> None:
        passes(f"journaled:{step}")
        write(self, step, groups)
        passes(f"written:{step}")

    prime_rl._Orchestrator._write = killed  # type: ignore[method-assign]
    prime_rl._POLL_S = 0.05
    prime_rl.main(sys.argv[2:])


if __name__ == "__main__":
    main()
