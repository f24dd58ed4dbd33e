"""The plugin behind the cost table of `make test`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"
LEAVING = "def test_leaving(monkeypatch, tmp_path):\n    monkeypatch.chdir(tmp_path)\n"


def test_a_test_that_leaves_the_folder_is_measured_in_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "test_leaving.py").write_text(LEAVING)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "test_costs", "--costs", "made/costs.jsonl"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = (tmp_path / "made" / "costs.jsonl").read_text().splitlines()
    assert [json.loads(line)["phase"] for line in lines] == ["setup", "call", "teardown"]
