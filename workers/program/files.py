"""What is put into the slot for a program, and what the program leaves there."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Mapping

from hermes_queue.agent.programs.program import Places, Program, Started
from hermes_queue.errors import EnvBug, ModelConfigError, SandboxError
from hermes_queue.sandbox.context import SlotContext

FILE_MAX_BYTES = 1 << 20
FILES_MAX_BYTES = 4 << 20
"""All kept files of an attempt together."""
READING_S = 10.0
"""Limit of reading them: the program may have left a slot that hardly answers."""
WORD_BYTES = (128 << 10) - 1
"""The longest word of a command line."""
_TASK, _TASK_WORD = "task.txt", "$(cat {task})"
_VARIABLES = ".hq-variables"
_FIND_HOME = 'printf %s "$HOME"'


async def placed(
    program: Program,
    context: SlotContext,
    *,
    task: str,
    model: str,
    url: str,
    key: str,
    max_turns: int,
) -> tuple[Started, str]:
    """Write the task and the program's files; returns what starts it, and the command for that.

    The command reads the variables, one of which is the key, from a file: as variables of the
    command they would be words of a command line of the sandbox's root with some backends, and
    neighbours in a shared sandbox may see those.

    Raises:
        SandboxError: the slot cannot run commands.
        ModelConfigError: a file of the program's cannot be written.
        EnvBug: the program takes no task of this length.
    """
    text = task.encode(errors="backslashreplace")
    if _TASK_WORD in program.run and len(text) > WORD_BYTES:
        raise EnvBug(
            f"the task has {len(text)} bytes, and the program {program.name} is given it as a word "
            f"of its command line, which can have {WORD_BYTES}: run such rows with another program"
        )
    found = await context.run(_FIND_HOME, timeout_s=30.0)
    home = found.stdout.decode(errors="replace").strip()
    if not found.ok or not home.startswith("/"):
        raise SandboxError(f"the slot has no home directory: {found.output[:200]!r}")
    started = program.start(
        Places(
            task=f"{home}/{_TASK}",
            model=model,
            url=url,
            key=key,
            home=home,
            workspace=context.workspace,
            max_turns=max_turns,
        )
    )
    variables = f"{home}/{_VARIABLES}"
    try:
        await context.write_file(f"{home}/{_TASK}", text)
        for path, content in started.files.items():
            await _write_own(context, program.name, path, content)
        await context.write_file(variables, _exported(started.env))
    except TimeoutError as error:
        raise SandboxError(f"the program's files cannot be written: {error}") from error
    return started, f"{_taken(variables)}\n{started.command}"


async def _write_own(context: SlotContext, program: str, path: str, content: str) -> None:
    try:
        await context.write_file(path, content.encode(errors="backslashreplace"))
    except TimeoutError:
        raise
    except OSError as error:
        raise ModelConfigError(f"program {program}: file {path}: {error}") from error


def _exported(env: Mapping[str, str]) -> bytes:
    lines = (f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    return "".join(lines).encode(errors="backslashreplace")


def _taken(path: str) -> str:
    """Bash that reads the file at `path`, deletes it and then runs it, as PATH may be in it."""
    file = shlex.quote(path)
    return f'set -- "$(<{file})"; rm -f -- {file}; eval "$1"; set --'


async def kept(paths: Iterable[str], context: SlotContext) -> dict[str, str]:
    """The files among `paths` that are there, as text; a large one as a note.

    What cannot be read within `READING_S` is left out. Raises SandboxError if the slot has ended.
    """
    found: dict[str, str] = {}
    left = FILES_MAX_BYTES
    try:
        async with asyncio.timeout(READING_S):
            for path in paths:
                most = min(left, FILE_MAX_BYTES)
                try:
                    data = await context.read_file(path, max_bytes=most)
                except (FileNotFoundError, TimeoutError):
                    continue
                except OSError:
                    found[path] = f"[... larger than {most} bytes ...]"
                    continue
                left -= len(data)
                found[path] = data.decode(errors="replace")
    except TimeoutError:
        pass
    return found
