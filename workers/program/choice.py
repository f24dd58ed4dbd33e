"""The program of a job, and the slot that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envs.base import Environment, check_program_env
from hermes_queue.agent.programs.catalogue import load_program
from hermes_queue.agent.programs.program import Program
from hermes_queue.agent.registry import runs_in_slot
from hermes_queue.models import AgentSpec
from hermes_queue.sandbox.base import SlotSpec


def program_of(
    agent: AgentSpec, env: Environment[Any], definition: Mapping[str, Any] | None
) -> Program | None:
    """The program that is the job's agent; None if it is our own loop.

    `definition` is that of a job which names it by its hash. Raises ModelConfigError: the program
    is unknown or invalid, or the env has tools that no program can have.
    """
    if not runs_in_slot(agent.kind):
        return None
    check_program_env(env)
    return load_program(definition or agent.params.get("program"))


def spec_of(spec: SlotSpec, program: Program | None) -> SlotSpec:
    """`spec`, with the program's installation."""
    if program is None or program.asset is None:
        return spec
    return replace(spec, assets=(*spec.assets, program.asset))
