"""A box made ready: its log folders, the image's ENTRYPOINT, the healthcheck, files put into it."""

from __future__ import annotations

import asyncio
import shlex
import time
from contextlib import suppress
from pathlib import Path

from hermes_plugins.harbor import tree
from hermes_plugins.harbor.config import Healthcheck
from hermes_plugins.harbor.settings import HarborSettings
from hermes_plugins.harbor.task import StepFiles, TaskFolder
from hermes_plugins.harbor.templates import filled
from hermes_queue.errors import EnvBug, EnvInfraError, SandboxError, SlotLost
from hermes_queue.images.spec import ImageConfig
from hermes_queue.sandbox.archives import ROOT, packed, write_archive
from hermes_queue.sandbox.context import SlotContext

_CHECK = "/hermes-queue-initial"
_SOLUTION = "/solution"
SETUP = "setup.sh"
SETUP_TIMEOUT_S = 600.0
ENTRYPOINT_LOG = "/logs/agent/entrypoint.log"

LOG_FOLDERS = """\
[ -d /logs ] && [ ! -L /logs ] || rm -rf /logs
for name in agent verifier artifacts; do
  folder=/logs/$name
  [ -d "$folder" ] && [ ! -L "$folder" ] || rm -rf "$folder"
  mkdir -p "$folder" && chmod 0777 "$folder" || exit 1
done
"""
"""A script that makes `/logs` and what is in it, in place of links and files."""
_IDLE = ("sh", "-c", "sleep infinity")
"""What the format runs in place of the image's CMD."""


async def make_ready(context: SlotContext, task: TaskFolder) -> None:
    """Prepare a fresh box for the agent.

    Raises:
        EnvInfraError: the box did not become healthy.
        SandboxError: the sandbox failed.
    """
    await make_log_folders(context)
    if task.uploads_environment:
        await upload(context, task.path / "environment", context.workspace)
    await start_entrypoint(context, task)
    if check := task.environment.healthcheck:
        if failure := await wait_until_healthy(context, check):
            raise EnvInfraError(f"environment.healthcheck: {failure}")


async def check_initial_state(context: SlotContext, task: TaskFolder) -> None:
    """Run the task's check of the box before the agent sees it, and leave nothing of it.

    Raises:
        EnvBug: it fails.
        SandboxError: the sandbox failed.
    """
    if task.initial is None:
        return
    await upload(context, task.initial, _CHECK)
    try:
        result = await context.run(f"bash {_CHECK}/check.sh", cwd="/", user=ROOT, timeout_s=300.0)
    finally:
        await context.run(f"rm -rf {_CHECK}", cwd="/", user=ROOT, timeout_s=60.0)
    if not result.ok:
        ended = "timed out" if result.timed_out else f"ended with {result.exit_code}"
        raise EnvBug(f"initial/check.sh {ended} before the agent began: {result.output[-1000:]}")


class StageFailed(Exception):
    """What a step puts into the box failed; the message says what."""


async def begin_stage(context: SlotContext, stage: StepFiles) -> None:
    """Put a step's files into the box, as its agent's user runs setup.sh, and wait for health.

    Raises:
        StageFailed: setup.sh fails, or the box does not become healthy.
        SandboxError: the sandbox failed.
    """
    if stage.workdir.is_dir():
        await upload(context, stage.workdir, context.workspace)
    if (stage.workdir / SETUP).is_file():
        script = shlex.quote(f"{context.workspace.rstrip('/')}/{SETUP}")
        result = await context.run(f"bash {script}", timeout_s=SETUP_TIMEOUT_S)
        if not result.ok:
            ended = "timed out" if result.timed_out else f"ended with {result.exit_code}"
            raise StageFailed(f"{SETUP} {ended}: {result.output[-1000:]}")
    if stage.healthcheck is not None:
        if failure := await wait_until_healthy(context, stage.healthcheck):
            raise StageFailed(f"healthcheck: {failure}")


async def try_stages(context: SlotContext, task: TaskFolder) -> None:
    """Put into an untouched box what the steps up to this one bring, as far as that works.

    Raises:
        SandboxError: the sandbox failed.
    """
    for stage in task.stages:
        with suppress(StageFailed):
            await begin_stage(context, stage)


async def put_solution(context: SlotContext, task: TaskFolder, folder: Path) -> str:
    """Put a solution into the box; returns the command line that runs it.

    Raises:
        EnvBug: a variable of the task needs one of the worker's that it may not read.
        SandboxError: the sandbox failed.
    """
    own = filled(task.config.solution.env, HarborSettings().env, place="solution.env")
    await upload(context, folder, _SOLUTION)
    words = [f"{name}={text}" for name, text in (("DEBIAN_FRONTEND", "noninteractive"), *own)]
    return shlex.join(["env", *words, "bash", f"{_SOLUTION}/solve.sh"])


async def make_log_folders(context: SlotContext) -> None:
    """Make `/logs` and what is in it, in place of links and files. Raises SandboxError."""
    result = await context.run(LOG_FOLDERS, cwd="/", user=ROOT, timeout_s=60.0)
    if not result.ok:
        raise SandboxError(f"/logs cannot be made: {result.output[-500:]}")


async def upload(context: SlotContext, folder: Path, target: str) -> None:
    """Put a folder of the task into the slot, as root's. Raises SandboxError, EnvBug."""
    data = await asyncio.to_thread(_packed, folder)
    await write_archive(context, target, data)


def _packed(folder: Path) -> bytes:
    return packed(folder, [entry.name for entry in tree.entries(folder)])


def program(config: ImageConfig | None, task: TaskFolder | None) -> tuple[str, ...]:
    """What a box starts: the image's ENTRYPOINT, or what the task's compose file names; () = none.

    `task`: None for a box that is not the task's own.
    """
    entrypoint, command = task.compose.program if task and task.compose else (None, None)
    if entrypoint is None:
        entrypoint = config.entrypoint if config else ()
    if not entrypoint and command is None:
        return ()
    return (*entrypoint, *(_IDLE if command is None else command))


async def start_entrypoint(context: SlotContext, task: TaskFolder | None) -> None:
    """Start what the box starts in the background, as the image's user. Raises SandboxError."""
    config = context.slot.image_config
    words = shlex.join(program(config, task))
    if config is None or not words:
        return
    command = f"(setsid {words} </dev/null >{ENTRYPOINT_LOG} 2>&1 &)"
    user = config.user.partition(":")[0] or ROOT
    if task is not None and task.compose is not None and task.compose.user:
        user = task.compose.user
    await context.run(command, cwd=config.workdir or "/", user=user, timeout_s=30.0)


async def start_services(
    context: SlotContext, task: TaskFolder | None, check: Healthcheck | None
) -> None:
    """Start what the box starts, over files of the agent's.

    A service that the agent has broken is for the tests to see.

    Raises:
        SandboxError: the sandbox failed.
    """
    if not program(context.slot.image_config, task):
        return
    await make_log_folders(context)
    await start_entrypoint(context, task)
    if check is not None:
        await wait_until_healthy(context, check)


async def wait_until_healthy(context: SlotContext, check: Healthcheck) -> str:
    """Run the healthcheck until it succeeds; why it does not, else "".

    Failures in its start period do not count.

    Raises:
        SandboxError: the sandbox failed.
        DeadlineExceeded: the stage has no time left.
    """
    began, failures = time.monotonic(), 0
    while True:
        starting = time.monotonic() - began < check.start_period_s
        result = await context.run(check.command, timeout_s=check.timeout_s)
        if result.ok:
            return ""
        failures += not starting
        if failures >= check.retries:
            how = f"ran into its limit of {check.timeout_s:g} s"
            how = how if result.timed_out else f"ended with {result.exit_code}"
            return f"failed {failures} times; the last time it {how}: {result.output[-500:]}"
        await asyncio.sleep(check.start_interval_s if starting else check.interval_s)


async def answers(context: SlotContext) -> bool:
    """Whether commands run in the slot. They do not where an agent has removed the shell.

    Of a slot that is gone or slow, that is not said: the failure before counts.
    """
    try:
        result = await context.run("true", cwd="/", user=ROOT)
    except SlotLost:
        return True
    except SandboxError:
        return False
    return result.ok or result.timed_out


async def kill_all(context: SlotContext) -> None:
    """Kill every process of the slot but its init, whoever it belongs to. Raises SandboxError."""
    await context.run("kill -9 -1", timeout_s=10.0, cwd="/", user=ROOT)
