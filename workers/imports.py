"""Imports what a job names (env, agent, parser, token server), in threads and with limits.

A job may come from anybody, and importing a module runs it. The operator decides which modules a
job may name (`HERMES_QUEUE_WORKER_IMPORTS`). Python's own modules are always refused: importing
some of them ends the process or opens a browser.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module

from hermes_queue import extensions
from hermes_queue.agent.parsers.from_renderers import FAMILIES
from hermes_queue.errors import EnvBug, EnvInfraError, foreign_error
from hermes_queue.models import TrajectoryJob

IMPORT_S = 120.0
"""Seconds a job waits for the import of a module."""

_OURS = ("envs", "hermes_queue", "hermes_plugins")

_NAMES_MOST = 1000
_modules: dict[tuple[str | None, ...], list[str]] = {}
"""By the names of env, agent, parser and token server; limited, since jobs may bring any names."""

_importing: dict[str, Future[None]] = {}
"""By module; an import that hangs is never started again."""


async def import_named(job: TrajectoryJob, *, allowed: str) -> None:
    """Import the modules that `job` names, so that loading from them takes no time.

    A missing module is ignored here: the loader raises the better message. `allowed` lists modules
    and packages, separated by commas; * = all but Python's own.

    Raises:
        EnvBug: a module is not allowed, or ends the process when it is imported.
        EnvInfraError: the import did not finish in time.
    """
    for module in await _modules_of(job):
        if not may_import(module, allowed):
            raise EnvBug(
                f"the job names the module {module!r}, which this worker does not import for a "
                "job: is it one of Python's own, or missing in HERMES_QUEUE_WORKER_IMPORTS?"
            )
        if module not in sys.modules or module in _importing:
            await _imported(module)


def may_import(module: str, allowed: str) -> bool:
    """Whether jobs may name `module`; `allowed` is the setting's text."""
    top, last = module.partition(".")[0], module.rpartition(".")[2]
    if top in sys.stdlib_module_names or last == "__main__":
        return False
    names = [*_OURS, *map(str.strip, allowed.split(","))]
    return "*" in names or any(module == name or module.startswith(f"{name}.") for name in names)


async def _modules_of(job: TrajectoryJob) -> list[str]:
    """The modules of the env, agent, parser and token server that the job names."""
    params = job.agent.params
    given = (job.env, job.agent.kind, params.get("parser"), params.get("server"))
    names = tuple(name if isinstance(name, str) else None for name in given)
    modules = _modules.get(names)
    if modules is None:  # it may read the plugins' metadata, and does so once per process
        modules = await asyncio.to_thread(_modules_of_names, *names)
        if len(_modules) < _NAMES_MOST:
            _modules[names] = modules
    return modules


def _modules_of_names(*names: str | None) -> list[str]:
    kinds = ("env", "agent", "parser", "token_server")
    named = zip(kinds, names, strict=True)
    found = [extensions.module_of(kind, name) for kind, name in named if name is not None]
    library = "renderers" if names[2] in FAMILIES else None
    return [module for module in (*found, library) if module]


async def _imported(module: str) -> None:
    """Wait until `module` is imported, by this job or another.

    The import has a separate thread: one that hangs would occupy a shared one for good.
    """
    future = _importing.get(module)
    if future is None:
        future = _importing[module] = Future()
        name = f"import-{module}"
        threading.Thread(target=_import, args=(module, future), name=name, daemon=True).start()
    try:
        await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), IMPORT_S)
    except TimeoutError:
        raise EnvInfraError(f"importing {module} takes longer than {IMPORT_S:.0f} s") from None


def _import(module: str, future: Future[None]) -> None:
    try:
        with suppress(ImportError):
            import_module(module)
    except Exception as error:  # noqa: BLE001 - somebody else's module; passed to the waiting job
        future.set_exception(error)
    except BaseException as error:  # noqa: BLE001 - a thread must not pass these on
        future.set_exception(EnvBug(f"importing {module} raises {foreign_error(error)}"))
    else:
        future.set_result(None)
    finally:
        del _importing[module]
