"""Harbor: trials in which everything does nothing. Usage: run_harbor.py COUNT AT_ONCE.

Runs in a virtual environment of its own; prints a turn as JSON. Its usage reports stay off.
"""

# mypy: ignore-errors

import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path

os.environ["HARBOR_TELEMETRY"] = "off"  # before Harbor is imported

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.job import Job
from harbor.models.job.config import JobConfig
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, VerifierConfig
from harbor.models.verifier.result import VerifierResult
from harbor.verifier.base import BaseVerifier


class Nowhere(BaseEnvironment):
    """An environment in which every command succeeds at once."""

    @staticmethod
    def type() -> str:
        return "nowhere"

    def _validate_definition(self) -> None:
        pass

    async def start(self, force_build: bool) -> None:
        pass

    async def stop(self, delete: bool) -> None:
        pass

    async def upload_file(self, source_path, target_path) -> None:
        pass

    async def upload_dir(self, source_dir, target_dir) -> None:
        pass

    async def download_file(self, source_path, target_path) -> None:
        pass

    async def download_dir(self, source_dir, target_dir) -> None:
        pass

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None) -> ExecResult:
        return ExecResult(stdout="", stderr="", return_code=0)


class Nothing(BaseAgent):
    """An agent that ends at once."""

    @staticmethod
    def name() -> str:
        return "nothing"

    def version(self) -> str:
        return "1"

    async def setup(self, environment) -> None:
        pass

    async def run(self, instruction, environment, context) -> None:
        pass


class One(BaseVerifier):
    """A verifier that rewards everything."""

    async def verify(self) -> VerifierResult:
        return VerifierResult(rewards={"reward": 1.0})


def task() -> Path:
    """The one task that all trials attempt."""
    files = {
        "task.toml": 'version = "1.0"\n',
        "instruction.md": "How many eggs are two dozen?\n",
        "environment/Dockerfile": "FROM scratch\n",
        "tests/test.sh": "true\n",
    }
    for name, text in files.items():
        path = Path("question", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Path("question")


async def run(name: str, count: int, at_once: int) -> None:
    config = JobConfig(
        job_name=name,
        n_attempts=count,
        n_concurrent_trials=at_once,
        quiet=True,
        environment=EnvironmentConfig(import_path="__main__:Nowhere"),
        agents=[AgentConfig(import_path="__main__:Nothing")],
        verifier=VerifierConfig(import_path="__main__:One"),
        tasks=[TaskConfig(path=task())],
    )
    with contextlib.redirect_stdout(sys.stderr):
        job = await Job.create(config)
        result = await job.run()
    stats = result.stats
    if stats.n_completed_trials != count or stats.n_errored_trials:
        raise SystemExit(f"not every trial ended well: {stats.model_dump_json()[:2000]}")


async def both(count: int, at_once: int) -> None:
    """A run that is not counted, and one that is."""
    await run("before", at_once, at_once)
    began, cpu = time.perf_counter(), sum(os.times()[:4])
    await run("counted", count, at_once)
    wall_s, cpu_s = time.perf_counter() - began, sum(os.times()[:4]) - cpu
    print(json.dumps({"count": count, "wall_s": wall_s, "cpu_s": cpu_s}))


if __name__ == "__main__":
    asyncio.run(both(*map(int, sys.argv[1:])))
