"""docker-compose.yml as Compose itself resolves it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from debian_tools import COMPOSE, command_of

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"


class ComposeRefused(Exception):
    """Compose does not take a file; the message is its own."""


def environment_file() -> dict[str, str]:
    """The settings that `deploy/make-env.sh` writes."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / ".env"
        subprocess.run(["sh", str(ROOT / "deploy/make-env.sh"), str(path)], check=True)
        assert path.stat().st_mode & 0o777 == 0o600
        return dict(line.split("=", 1) for line in path.read_text().splitlines())


def load(
    variables: Mapping[str, str], settings: Mapping[str, str | None] | None = None, text: str = ""
) -> dict[str, Any]:
    """What `docker compose config` makes of the file, with all profiles.

    Args:
        variables: what `.env` has.
        settings: what `settings.env` has, None = a name alone; None = there is no such file.
        text: another file in place of ours.

    Raises:
        ComposeRefused: it is no file for Compose.
    """
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "docker-compose.yml").write_text(text or FILE.read_text())
        _write(place / ".env", variables)
        if settings is not None:
            _write(place / "settings.env", settings)
        shutil.copytree(ROOT / "deploy", place / "deploy", ignore=shutil.ignore_patterns("config"))
        command = [*command_of(COMPOSE), "--profile", "*", "config", "--format", "json"]
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        done = subprocess.run(command, cwd=place, env=kept, capture_output=True, text=True)
        if done.returncode:
            raise ComposeRefused(done.stderr)
        resolved: dict[str, Any] = json.loads(
            done.stdout.replace(directory, str(ROOT)).replace("$$", "$")
        )
        return resolved


def _write(path: Path, variables: Mapping[str, str] | Mapping[str, str | None]) -> None:
    lines = (name if value is None else f"{name}={value}" for name, value in variables.items())
    path.write_text("".join(f"{line}\n" for line in lines))


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
