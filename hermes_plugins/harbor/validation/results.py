"""The file of a validation: one line of JSON per task, which producers read (`--validated`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hermes_plugins.harbor.validation.measured import (
    AttemptResult,
    MeasuredMode,
    TaskToValidate,
    counted,
)
from hermes_queue.errors import ConfigurationError

REPORTED = ("reason", "detail", "bootstrap", "notes", "suspect", "output")
TEXT_CHARACTERS = 1000
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class ResultsFile:
    """Lines that are there are kept; each further task is on the disk as soon as it is done."""

    def __init__(self, path: Path, backend: str) -> None:
        """Reads the lines that are there.

        Raises:
            ConfigurationError: the file is of something else, of another backend, or cannot be
                written.
        """
        self.path, self._backend = path, backend
        self._done: dict[str, dict[str, Any]] = {}
        try:
            self._read()
            path.open("ab").close()
        except OSError as error:
            raise ConfigurationError(f"--out {path}: {error.strerror}") from error

    def _read(self) -> None:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]  # a line may have been cut by a full disk
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                row = json.loads(line)
                digest, backend = row["digest"], row["backend"]
            except (ValueError, KeyError, TypeError, RecursionError):
                raise ConfigurationError(
                    f"--out {self.path}:{number}: is no line of a validation; choose another file"
                ) from None
            if backend != self._backend:
                raise ConfigurationError(
                    f"--out {self.path}: is of the backend {backend}; what is valid there need not "
                    f"be valid on {self._backend}: choose another file"
                )
            self._done[digest] = row
        if len(whole) < len(data):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))

    def known(self, task: TaskToValidate, repeat: int, *, all_modes: bool) -> dict[str, Any] | None:
        """The line of a task that need not run again: measured as thoroughly, without failures."""
        row = self._done.get(str(task.row["digest"]))
        if row is None or row.get("verdict") == "failed" or row.get("repeat", 0) < repeat:
            return None
        return row if row.get("all_modes") or not all_modes else None

    def add(
        self, task: TaskToValidate, modes: Sequence[MeasuredMode], repeat: int, *, all_modes: bool
    ) -> dict[str, Any]:
        """Append the line of a task, and return it."""
        decisive = counted(modes)
        image = next((each.image for each in decisive.results if each.image), "")
        digest = _DIGEST.search(image)
        row = {
            "instance_id": task.row["instance_id"],
            "digest": task.row["digest"],
            "verdict": decisive.verdict,
            "mode": None if decisive.verdict == "oracle_fails" else decisive.mode,
            "backend": self._backend,
            "image": image,
            "image_digest": digest.group() if digest else None,
            "seconds": round(sum(map(_seconds, modes)), 1),
            "repeat": repeat,
            "all_modes": all_modes,
            "forged": decisive.forged,
            "executes_agent_code": decisive.executes_agent_code,
            "modes": {each.mode: _columns(each) for each in modes},
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=True) + "\n")
        self._done[str(row["digest"])] = row
        return row


def _seconds(mode: MeasuredMode) -> float:
    return sum(each.seconds for each in (*mode.results, *filter(None, [mode.poisoned])))


def _columns(mode: MeasuredMode) -> dict[str, Any]:
    return {
        "verdict": mode.verdict,
        "oracle": [_short(each) for each in mode.oracle],
        "nop": [_short(each) for each in mode.nop],
        "tamper": {name: _short(each) for name, each in mode.tamper.items()},
        "poisoned": _short(mode.poisoned) if mode.poisoned else None,
    }


def _short(result: AttemptResult) -> dict[str, Any]:
    row = {name: value for name, value in asdict(result).items() if value not in ("", {}, [])}
    row.pop("image", None)
    if "report" in row:
        row["report"] = {
            name: _cut(result.report[name]) for name in REPORTED if result.report.get(name)
        }
    return row


def _cut(value: Any) -> Any:
    """The report may repeat what an agent has written: bounded."""
    if isinstance(value, str):
        return value[-TEXT_CHARACTERS:]
    if isinstance(value, Mapping):
        return {str(name): _cut(each) for name, each in list(value.items())[:20]}
    if isinstance(value, Sequence):
        return [_cut(each) for each in list(value)[:20]]
    return value
