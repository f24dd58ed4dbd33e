"""Public names and commands are loaded when they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import click
import pytest

import hermes_queue
from hermes_queue.cli import cli
from hermes_queue.core import declared
from hermes_queue.plugins import load_target

CLIENTS = {"aiohttp", "fsspec", "grpclib", "httpx2", "modal", "openai", "prometheus_client"}
"""Clients of what a deployment may or may not have."""
DATA = {"datasets", "pyarrow"}
CELERY = {"amqp", "billiard", "celery", "kombu"}
SCREENS = {"flower", "prompt_toolkit", "rich"}
MODULES_OF_REDIS = {f"redis.commands.{m}" for m in ("bf", "json", "search", "timeseries")}
COMMANDS = {words: each for plugin in declared() for words, each in plugin.commands.items()}
NOT_OF_ALL_COMMANDS = {"hermes_queue.cli.watch.status"}
"""Commands that draw on the screen in any case."""


def loaded_by(code: str) -> set[str]:
    """Names of all modules that are loaded after `code` has run."""
    command = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("name", hermes_queue.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(hermes_queue, name) is not None
    assert name in dir(hermes_queue)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(str(hermes_queue.__file__)).read_text())
    [typed] = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        (str(node.module).removeprefix("hermes_queue."), alias.name)
        for node in typed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == {(module, name) for name, module in hermes_queue._HOME.items()}
    assert {name for _, name in imported} == {*hermes_queue.__all__}


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'consumes'"):
        hermes_queue.consumes  # noqa: B018


def test_errors_need_nothing_but_the_standard_library() -> None:
    loaded = loaded_by("import hermes_queue.errors")
    assert not {"pydantic", "redis", "click", "asyncio"} & loaded
    ours = {name for name in loaded if name.startswith("hermes_queue")}
    assert ours == {"hermes_queue", "hermes_queue.errors"}


def test_sending_jobs_and_reading_results_load_nothing_of_others() -> None:
    code = """
import asyncio, hermes_queue, hermes_queue.errors
async def first_use():
    away = "unix:///nonexistent"
    try: hermes_queue.enqueue(env="gsm8k", items=[{"question": "1"}], url=away)
    except hermes_queue.RedisUnavailable: print("sent")
    try: await anext(hermes_queue.consume("trainer", url=away))
    except hermes_queue.RedisUnavailable: print("read")
asyncio.run(first_use())
"""
    loaded = loaded_by(code)
    assert {"sent", "read", "redis.client", "hermes_queue.models"} <= loaded
    others = CLIENTS | DATA | CELERY | SCREENS | MODULES_OF_REDIS | {"click", "difflib"}
    assert not others & loaded


def test_commands_load_no_client_before_they_run() -> None:
    modules = {each.target.partition(":")[0] for each in COMMANDS.values()} - NOT_OF_ALL_COMMANDS
    loaded = loaded_by("import " + ", ".join(modules))
    assert not (CLIENTS | DATA | CELERY | SCREENS) & loaded


def test_a_worker_loads_no_client_before_a_job_needs_it() -> None:
    loaded = loaded_by("import workers.trajectory, workers.lifecycle")
    assert "celery" in loaded
    assert not (CLIENTS | DATA | SCREENS | MODULES_OF_REDIS | {"http.server"}) & loaded


def test_a_list_of_commands_loads_none_of_them() -> None:
    loaded = loaded_by("from hermes_queue.cli import main; import click; assert main")
    assert not {"redis", "pydantic", "rich"} & loaded


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_is_where_its_declaration_says(words: str) -> None:
    command: click.Command | None = cli
    for name in words.split():
        assert command is not None
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), name)
        else:  # it stands in for a format of `export`
            flags = ["--format", name]
            command = command.make_context("export", flags, resilient_parsing=True).command
    assert command is load_target(COMMANDS[words].target)
