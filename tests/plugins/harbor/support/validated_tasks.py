"""Tasks validated on the backend that HARBOR_SANDBOX names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harbor_backends import BACKENDS

WANTED = os.environ.get("HARBOR_SANDBOX", "local")
SANDBOX = BACKENDS.get(WANTED, WANTED)
TIMEOUT_S = 1800


def validated(tmp_path: Path, dataset: Path, task: str) -> dict[str, Any]:
    """The line of one task."""
    out = tmp_path / "validated.jsonl"
    command = [sys.executable, "-m", "hermes_queue.cli", "tasks", "validate", str(dataset)]
    command += ["--sandbox", SANDBOX, "--instance-id", task, "--out", str(out)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=Path(__file__).parents[4]
    )
    assert out.exists(), done.stderr[-2000:]
    line: dict[str, Any] = json.loads(out.read_text())
    assert (done.returncode == 0) == (line["verdict"] in ("valid", "no_oracle")), done.stderr
    return line
