"""A real vLLM or SGLang on a loopback port, which tests may kill and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from ports import free_port

HERE = Path(__file__).parent
START_TIMEOUT_S = 600.0
"""Both take half a minute on two idle cores, and six minutes at a load of 38."""


class LiveServer:
    """One server process group; its output is in `log_path`."""

    def __init__(
        self,
        kind: str,
        venv: Path,
        model: Path,
        directory: Path,
        *arguments: str,
        **environment: str,
    ) -> None:
        """Prepare.

        Args:
            kind: `vllm` or `sglang`.
            venv: where it is installed.
            model: directory of weights and tokenizer.
            directory: for the log.
            arguments: more flags of the server.
            environment: added to this process's.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.kind = kind
        self.log_path = directory / f"{kind}.log"
        self.port = free_port()
        self.root = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.root}/v1"
        self._command = ["bash", str(HERE / f"serve_{kind}.sh"), str(venv), str(model)]
        self._command += [str(self.port), *arguments]
        self._environment = {**os.environ, **environment}
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> LiveServer:
        """Start it and wait for nothing."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def wait_ready(self) -> LiveServer:
        """Wait until it answers; an AssertionError with its log when it does not."""
        assert self.process is not None
        give_up = time.monotonic() + START_TIMEOUT_S
        while not self._healthy():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < give_up, self.log()
            time.sleep(0.5)
        return self

    def start(self) -> LiveServer:
        """Start it and wait until it answers."""
        return self.launch().wait_ready()

    def kill9(self) -> None:
        """Kill all its processes at once: engine, scheduler and HTTP server."""
        assert self.process is not None
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")[-8000:]

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.root}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
