"""docker-compose.yml as Compose reads it: anchors, merges and variables resolved."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?::([-?])([^}]*))?\})")


def environment_file() -> dict[str, str]:
    """The settings that `deploy/make-env.sh` writes."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / ".env"
        subprocess.run(["sh", str(ROOT / "deploy/make-env.sh"), str(path)], check=True)
        assert path.stat().st_mode & 0o777 == 0o600
        return dict(line.split("=", 1) for line in path.read_text().splitlines())


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """`value` with ${NAME}, ${NAME:-default} and ${NAME:?message} replaced, $$ = $."""

    def put(match: re.Match[str]) -> str:
        dollar, name, kind, rest = match.groups()
        if dollar:
            return "$"
        if variables.get(name):
            return variables[name]
        if kind == "-":
            return str(rest)
        raise KeyError(f"{name}: {rest}")

    if isinstance(value, str):
        return _VARIABLE.sub(put, value)
    if isinstance(value, list):
        return [interpolated(part, variables) for part in value]
    if isinstance(value, dict):
        return {name: interpolated(part, variables) for name, part in value.items()}
    return value


def load(variables: Mapping[str, str]) -> dict[str, Any]:
    """The whole file."""
    resolved: dict[str, Any] = interpolated(yaml.safe_load(FILE.read_text()), variables)
    return resolved


class Service:
    """One service's command and environment, to be started as a process of this machine.

    Args:
        moves: texts to replace in command and environment: addresses and directories.
    """

    def __init__(self, spec: Mapping[str, Any], moves: Mapping[str, str]) -> None:
        self._moves = moves
        self.command = [self._moved(part) for part in spec["command"]]
        given = spec.get("environment", {})
        self.environment = {k: self._moved(v) for k, v in given.items() if v is not None}
        self.process: subprocess.Popen[bytes] | None = None
        self.log_path = Path()

    def _moved(self, text: str) -> str:
        # A port is not to be found in the middle of a random password.
        olds = "|".join(
            rf"(?<!\w){old}(?!\w)" if old.isdecimal() else re.escape(old) for old in self._moves
        )
        return re.sub(olds, lambda match: self._moves[match[0]], text)

    def start(self, log: Path, **more: str) -> Service:
        """Start it, in an environment that has nothing of this one but PATH and the like."""
        self.log_path = log
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HERMES_", "MODAL_"))}
        kept["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:{kept['PATH']}"
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                self.command,
                env={**kept, **self.environment, **more},
                cwd=ROOT,
                stdout=out,
                stderr=out,
            )
        return self

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self, timeout_s: float) -> int:
        """SIGTERM, as `docker compose stop` does; the exit code."""
        assert self.process is not None
        self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
