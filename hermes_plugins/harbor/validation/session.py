"""A validation of many tasks, with progress on standard error."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hermes_plugins.harbor.validation.course import Course
from hermes_plugins.harbor.validation.measured import TaskToValidate
from hermes_plugins.harbor.validation.results import ResultsFile
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.errors import EXIT_FAILED, EXIT_USAGE
from hermes_queue.sandbox import make_backend
from hermes_queue.settings import SandboxSettings


def validate(
    tasks: Sequence[TaskToValidate],
    out: Path | None,
    *,
    slots: int,
    repeat: int,
    all_modes: bool,
) -> int:
    """Measure tasks on the configured backend; returns the exit code of the command.

    Args:
        tasks: What is to be measured.
        out: The file of the validation; None: `validated-BACKEND.jsonl`.
        slots: Most attempts at once.
        repeat: See `Course`.
        all_modes: See `Course`.

    Raises:
        ConfigurationError: `out` cannot be used.
        IsolationUnavailable: this machine cannot isolate slots.
        SandboxError: the backend cannot be reached.
        KeyboardInterrupt: after the slots were given back; the file keeps what is done.
    """
    name = SandboxSettings().backend
    file = ResultsFile(out or Path(f"validated-{name.replace(':', '-')}.jsonl"), name)
    session = _Session(tasks, file, slots, repeat, all_modes=all_modes)
    verdicts = asyncio.run(session.run(name))
    _say(", ".join(f"{count} {name}" for name, count in sorted(verdicts.items())))
    _say(f"validation: {file.path}")
    if verdicts["failed"]:
        _say("failed tasks are measured again by the same command")
        return EXIT_USAGE
    return EXIT_FAILED if set(verdicts) - {"valid", "no_oracle"} else 0


class _Session:
    def __init__(
        self,
        tasks: Sequence[TaskToValidate],
        file: ResultsFile,
        slots: int,
        repeat: int,
        *,
        all_modes: bool,
    ) -> None:
        self._tasks, self._file = tasks, file
        self._slots, self._repeat, self._all_modes = slots, repeat, all_modes
        self._verdicts: Counter[str] = Counter()
        self._ended = 0

    async def run(self, backend_name: str) -> Counter[str]:
        """The number of tasks by verdict."""
        left = [task for task in self._tasks if not self._is_known(task)]
        if known := self._ended:
            _say(f"{known} of {len(self._tasks)} tasks are in {self._file.path} already")
        if not left:
            return self._verdicts
        labels = {"deployment": "validate", "worker": f"validate-{os.getpid()}"}
        backend = make_backend(backend_name, slots=self._slots, labels=labels)
        try:
            await backend.start()
            course = Course(
                backend,
                slots=self._slots,
                repeat=self._repeat,
                all_modes=self._all_modes,
                report=_say,
            )
            await self._all(course, left)
        finally:
            await close_clients()
            await backend.stop()
        return self._verdicts

    def _is_known(self, task: TaskToValidate) -> bool:
        row = self._file.known(task, self._repeat, all_modes=self._all_modes)
        if row is None:
            return False
        self._ended += 1
        self._verdicts[str(row["verdict"])] += 1
        return True

    async def _all(self, course: Course, left: Sequence[TaskToValidate]) -> None:
        """One task per slot at a time, so that finished ones reach the file early."""
        waiting = iter(left)

        async def work() -> None:
            for task in waiting:
                modes = await course.run(task)
                self._end(
                    self._file.add(task, modes, self._repeat, all_modes=self._all_modes),
                )

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._slots, len(left))):
                group.create_task(work())

    def _end(self, row: dict[str, Any]) -> None:
        self._ended += 1
        self._verdicts[row["verdict"]] += 1
        mode = f" ({row['mode']})" if row["mode"] else ""
        share = f"{self._ended}/{len(self._tasks)}"
        runs = ", its tests run the agent's code" if row.get("executes_agent_code") else ""
        name = row["instance_id"]
        _say(f"{share}  {name}: {row['verdict']}{mode}{runs}, {row['seconds']:.0f} s")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
