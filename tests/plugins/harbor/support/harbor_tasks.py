"""Task folders in the Harbor format, written for a test."""

from __future__ import annotations

import textwrap
from pathlib import Path

IMAGE = '[environment]\ndocker_image = "debian:bookworm"\nallow_internet = false\n'
TEST = """\
#!/bin/bash
if [ "$(cat /app/answer)" = 42 ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
"""


def write_task(folder: Path, *, config: str = IMAGE, test: str | None = TEST, **files: str) -> Path:
    """Write a task folder; `files` by path, with `__` for a slash and `_dot_` for a point."""
    found = {"task.toml": config, "instruction.md": "Write 42 to /app/answer.", **files}
    if test is not None:
        found["tests/test.sh"] = test
    for name, text in found.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder
