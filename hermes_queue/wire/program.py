"""The run of an agent program, as its own account and that of its endpoint have it."""

from __future__ import annotations

from pydantic import Field

from hermes_queue.wire.conversation import Wire


class ProgramRun(Wire):
    """A program that ran in the slot. Nothing of it decides a score."""

    name: str
    version: str = ""
    argv: tuple[str, ...] = ()
    """Its command line, without the key of the endpoint."""
    exit_code: int | None = None
    """None if it did not end by itself."""
    seconds: float = 0.0
    cpu_s: float | None = None
    """Processor time of the program and what it started; None = unknown."""
    stdout: str = ""
    """The end of its output."""
    stderr: str = ""
    kept: dict[str, str] = Field(default_factory=dict)
    """Path -> content of the files that it left and its definition keeps."""
    other_requests: dict[str, int] = Field(default_factory=dict)
    """Path -> number of requests to the endpoint that were no model calls."""
    refused: dict[str, int] = Field(default_factory=dict)
    """Reason -> number of model calls that got no reply."""
