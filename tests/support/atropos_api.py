"""The real Atropos API server, and a trainer that does what a test tells it."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import time
from pathlib import Path
from typing import Any

from ports import free_port
from zygote import ForkedProcess, zygote


class AtroposApi:
    """`run-api` of atroposlib on a free port; it can be killed and restarted on the same port."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self.process: ForkedProcess | None = None

    def start(self) -> None:
        flags = ["--host", "127.0.0.1", "--port", str(self.port)]
        with self._log.open("ab") as log:
            self.process = zygote("atroposlib.api", "uvicorn").start(
                "atroposlib.cli.run_api", flags, os.environ, log
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                call(self.port, "GET", "/")
                return
            except OSError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(self._log.read_text()[-2000:]) from error
                time.sleep(0.05)

    def kill9(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        self.kill9()
        self.start()


def call(port: int, method: str, path: str, body: Any = None, timeout_s: float = 30.0) -> Any:
    """Make one request on a new connection.

    Raises:
        OSError: the server does not answer.
        RuntimeError: the server answered with an error.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
    except http.client.HTTPException as error:
        raise ConnectionResetError(str(error)) from error
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status} {text[:300]!r}")
    return json.loads(text) if text.startswith((b"{", b"[")) else text


class Trainer:
    """Speaks the trainer's side; every call blocks, `next_batch` does not."""

    def __init__(self, api: AtroposApi, batch_size: int = 8, max_token_len: int = 1024) -> None:
        self.api = api
        self.batch_size = batch_size
        self.max_token_len = max_token_len

    def register(self) -> None:
        registration = {
            "wandb_group": "g",
            "wandb_project": "p",
            "batch_size": self.batch_size,
            "max_token_len": self.max_token_len,
            "checkpoint_dir": "/nowhere",
            "save_checkpoint_interval": 10,
            "starting_step": 0,
            "num_steps": 1000,
        }
        call(self.api.port, "POST", "/register", registration)

    def begin(self) -> None:
        """Register, and ask for the first batch: only then environments may register."""
        self.register()
        assert self.batch() is None

    def batch(self) -> list[dict[str, Any]] | None:
        """One answer of `/batch`."""
        found: list[dict[str, Any]] | None = call(self.api.port, "GET", "/batch")["batch"]
        return found

    async def next_batch(self, timeout_s: float = 60.0) -> list[dict[str, Any]]:
        """Poll until there is one."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := await asyncio.to_thread(self.batch):
                return found
            await asyncio.sleep(0.05)
        raise AssertionError("the trainer was given no batch")


def provenance(batch: list[dict[str, Any]]) -> list[str]:
    """The trajectory ids of a batch, in order."""
    return [each["hermes_queue"]["trajectory_id"] for group in batch for each in group["overrides"]]
