"""Run make targets one after the other, even if some fail, and print one table.

    python tests/support/run_targets.py tamper chaos ...

Exit code 1 if any failed. A target reports itself what it lacks; its last line is shown.
"""

from __future__ import annotations

import subprocess
import sys
import time


def main(targets: list[str]) -> int:
    """Run them all; returns the exit code."""
    rows = []
    for target in targets:
        print(f"=== make {target}", flush=True)
        began, last = time.monotonic(), ""
        process = subprocess.Popen(
            ["make", "--no-print-directory", target],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if line.strip() and not line.startswith("make: "):
                last = line.strip()
        outcome = "passed" if process.wait() == 0 else "FAILED"
        rows.append((target, outcome, time.monotonic() - began, last))
    print()
    for target, outcome, seconds, last in rows:
        print(f"{target:20} {outcome:7} {seconds:7.0f} s  {last[:110]}")
    return int(any(outcome != "passed" for _, outcome, _, _ in rows))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
