"""The program of `--agent command`: found, checked, and packed for the jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from envs.base import Environment, LoadsItem, check_program_env, task_of
from hermes_queue.agent.programs.catalogue import (
    Packed,
    find_program,
    pack,
    preset_names,
)
from hermes_queue.agent.programs.conceal import overlap
from hermes_queue.agent.programs.definition import Definition, read_definition
from hermes_queue.agent.programs.program import check_model_name
from hermes_queue.errors import ConfigurationError, ModelConfigError, foreign_error

MAX_TASK_BYTES = 120 << 10
"""Linux takes no argument of more than 128 KiB, and most programs take their task as one."""


@dataclass(frozen=True, slots=True)
class ChosenProgram:
    """The program that a run's jobs name."""

    definition: Definition
    packed: Packed

    def misfit(self, env: Environment[Any], profile: str, item: Any) -> str | None:
        """Why the program cannot work on this item; None if it can.

        Raises:
            ConfigurationError: the env's code fails.
        """
        if isinstance(env, LoadsItem):  # what the item names is the worker's to look at
            return None
        try:
            conceal = env.spec(item, profile).conceal if self.definition.imports else ()
            size = len(task_of(env, item).encode(errors="replace"))
        except Exception as error:
            raise ConfigurationError(f"env {env.name}: {foreign_error(error)}") from error
        if name := overlap(conceal, frozenset(self.definition.imports)):
            return f"about {name}, which program {self.definition.name} brings"
        if size > MAX_TASK_BYTES:
            return f"a task of more than {MAX_TASK_BYTES} bytes, too long for a program"
        return None


Misfit = Callable[[Any], str | None]
"""Why an item cannot be worked on; None if it can."""


def require_program(params: Mapping[str, Any]) -> None:
    """Raise ConfigurationError, with the presets, unless a program is named."""
    if not params.get("program"):
        raise ConfigurationError(
            "--agent command: name the program with --agent-param program=NAME; there are "
            f"{', '.join(preset_names())}, and your own with program=FILE.toml:NAME"
        )


def choose_program(
    params: Mapping[str, Any], model: str | None, env: Environment[Any]
) -> ChosenProgram:
    """The program that `--agent-param program=...` names.

    Raises:
        ConfigurationError: there is none, it is invalid, the env has tools that no program can
            call, or the model's name cannot be written into its configuration.
    """
    name = params["program"]
    try:
        if isinstance(name, Mapping):
            definition = read_definition(name)
        else:
            definition = find_program(str(name))
        check_model_name(str(model))
        check_program_env(env)
    except ModelConfigError as error:
        raise ConfigurationError(f"--agent command: {error}") from error
    except (ValueError, ConfigurationError) as error:
        raise ConfigurationError(f"--agent-param program: {error}") from error
    return ChosenProgram(definition, pack(definition))
