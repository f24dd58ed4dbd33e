"""A trajectory played by a person, or by an agent while a person watches.

What an agent does is shown while it does it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from envs.base import load_env
from hermes_plugins.play import human
from hermes_plugins.play.attempt import at_stage, foreign_bug, run_attempt
from hermes_plugins.play.background import BackgroundLoop, LoopEnded
from hermes_plugins.play.interruptible import InterruptibleBackend
from hermes_plugins.play.person import Person
from hermes_plugins.play.screen import Display, headline
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.loop import AgentResult
from hermes_queue.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    Cancelled,
    ConfigurationError,
    IsolationUnavailable,
    SandboxError,
    Stage,
    TrajectoryFailure,
)
from hermes_queue.models import Message, TrajectoryJob, Turn
from hermes_queue.sandbox import make_backend
from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.settings import ModelSettings, SandboxSettings
from hermes_queue.tools.toolbox import load_tool
from workers.clock import Clock
from workers.draft import Draft
from workers.record import final_record

RECORD_MAX_BYTES = 256 << 20
"""A record goes to a file here and not through Redis, whose caps do not apply."""
_TRACEBACK_LINES = 40
_OWN_CODE = ("env_bug",)
"""Causes whose traceback is shown."""
_STAGES: Mapping[Stage, str] = {
    "prepare": "preparing the environment, which takes minutes if this host has never had it",
    "acquire": "getting a slot",
    "setup": "setting the workspace up",
    "verify": "grading",
}

_EVENT_CHARS = 300


def play(
    job: TrajectoryJob,
    row: Mapping[str, Any],
    *,
    definition: Mapping[str, Any] | None = None,
    record: Path | None = None,
) -> int:
    """Run one attempt of `job` here and show it; returns the exit code of `hermes-queue play`.

    If the agent is `human`, its messages are read from standard input.

    Args:
        job: names the agent, the limits and the profile.
        row: the dataset row.
        definition: the agent's program, if the job names it by its hash.
        record: file for the record, as one line of JSON.

    Raises:
        ConfigurationError: the record cannot be written there, or a name is unknown.
        IsolationUnavailable: this machine cannot isolate slots.
    """
    if record is not None:
        _check_writable(record)
    for stream in (sys.stdin, sys.stdout):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace" if stream is sys.stdin else "backslashreplace")
    return _Session(job, row, definition).run(record)


def _check_writable(path: Path) -> None:
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigurationError(f"--record {path}: {error.strerror}") from error


class _Session:
    """One attempt with what shows it, and with the person who plays it, if any."""

    def __init__(
        self, job: TrajectoryJob, row: Mapping[str, Any], definition: Mapping[str, Any] | None
    ) -> None:
        self._display = Display()
        self._row = row
        self._definition = definition
        self._draft = draft = Draft(job=job, attempt=1, epoch=1, prices=ModelSettings().prices)
        draft.clock = Clock(job.limits.total_timeout_s, on_stage=self._on_stage)
        tools = [load_tool(name) for name in load_env(job.env).tools]
        self._person = Person(self._display, draft, tools) if job.agent.kind == "human" else None
        typed = self._person is not None
        draft.agent = AgentResult(watch=_LiveTranscript(self._display, draft, typed=typed))
        self._name = SandboxSettings().backend
        labels = {"deployment": "play", "worker": f"play-{os.getpid()}"}
        self._backend = InterruptibleBackend(make_backend(self._name, slots=1, labels=labels))

    def run(self, record: Path | None) -> int:
        """Play; returns the exit code."""
        self._display.note(headline(self._draft.job, self._name))
        thread = BackgroundLoop(self._played)
        try:
            thread.start()
            if self._person is not None:
                self._person.serve(thread, self._backend)
            failure = self._failure(thread)
        except (KeyboardInterrupt, SystemExit):
            return self._interrupted(thread, record)
        self._end(failure, record)
        return self._exit_code(failure)

    def _interrupted(
        self, thread: BackgroundLoop[TrajectoryFailure | None], record: Path | None
    ) -> int:
        self._display.note("ending; once more does not wait for it")
        thread.cancel()
        with suppress(KeyboardInterrupt, SystemExit):
            self._end(self._failure(thread), record)
        return EXIT_INTERRUPTED

    def _failure(
        self, thread: BackgroundLoop[TrajectoryFailure | None]
    ) -> TrajectoryFailure | None:
        """Wait for the end of the attempt."""
        try:
            return thread.result.result()
        except LoopEnded as ended:  # a task that the env has started
            return at_stage(foreign_bug(ended.__cause__ or ended), self._draft)

    async def _played(self) -> TrajectoryFailure | None:
        backend = cast(SandboxBackend, self._backend)
        try:
            await backend.start()
        except IsolationUnavailable:
            raise
        except SandboxError as failure:
            failure.stage = "acquire"
            return failure
        except asyncio.CancelledError:
            await backend.stop()
            return at_stage(Cancelled("interrupted"), self._draft)
        try:
            before_turn = None
            if self._person is not None:
                human.next_message.set(self._person.take)
                before_turn = self._person.before_turn
            return await run_attempt(
                self._draft,
                self._row,
                backend,
                definition=self._definition,
                on_measured=self._on_measured,
                before_turn=before_turn,
            )
        finally:
            await close_clients()
            await backend.stop()

    def _on_stage(self, stage: Stage) -> None:
        if text := _STAGES.get(stage):
            self._display.note(text)
        elif stage == "agent":
            self._display.limits(self._draft.job.limits, 0)

    async def _on_measured(self) -> None:
        if self._draft.verdict is not None and not self._draft.is_provisional:
            self._display.verdict(self._draft.verdict, self._draft.agent.stop_reason)

    def _end(self, failure: TrajectoryFailure | None, record: Path | None) -> None:
        """Show how it ended, and write the record."""
        draft = self._draft
        if draft.agent.program is not None:
            self._display.program(draft.agent.program, draft.job.limits.observation_bytes)
        if failure is not None:
            self._display.failure(failure)
            # Of code that a user wrote; a server or sandbox that failed is named by the message.
            if (cause := failure.__cause__) and failure.kind in _OWN_CODE:
                lines = "".join(traceback.format_exception(cause)).splitlines()
                self._display.say("\n".join(lines[-_TRACEBACK_LINES:]), dim=True)
        usage, cost = draft.agent.usage, draft.cost_usd(draft.agent.usage)
        facts = [f"{len(draft.agent.turns)} turns"]
        if usage.prompt_tokens or usage.completion_tokens:
            facts.append(f"{usage.prompt_tokens} + {usage.completion_tokens} tokens")
        if cost:
            facts.append(f"${cost:.4f}")
        facts += [f"{name} {took:.1f} s" for name, took in draft.clock.stage_seconds.items()]
        self._display.note(", ".join(facts))
        if record is not None:
            self._write(record, failure)

    def _write(self, path: Path, failure: TrajectoryFailure | None) -> None:
        made, _ = final_record(
            self._draft,
            failure,
            owner=f"play-{os.getpid()}",
            host=socket.gethostname(),
            cap_bytes=RECORD_MAX_BYTES,
        )
        try:
            path.write_text(made.to_json() + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"--record {path}: {error.strerror}") from error
        self._display.note(f"the record is in {path}")

    def _exit_code(self, failure: TrajectoryFailure | None) -> int:
        verdict = self._draft.verdict
        if failure is not None:
            return EXIT_FAILED if isinstance(failure, Cancelled) else EXIT_USAGE
        if verdict is None:
            return EXIT_FAILED
        return 0 if verdict.score is None or verdict.score >= 1.0 else EXIT_FAILED


class _LiveTranscript:
    """Shows what an agent's result gains: its watcher, see `AgentResult.watch`.

    Of our own loop these are messages; of a program the nodes of all its conversations, of which
    `messages` repeats the main one at the end.
    """

    def __init__(self, display: Display, draft: Draft, *, typed: bool) -> None:
        """`typed`: the agent's messages are on the screen already, since a person types them."""
        self._display = display
        self._draft = draft
        self._typed = typed
        self._messages = self._nodes = self._replies = self._events = 0

    def __call__(self, result: AgentResult) -> None:
        """Show what is new."""
        events, self._events = result.events[self._events :], len(result.events)
        for event in events:
            self._event(event)
        nodes, self._nodes = result.nodes[self._nodes :], len(result.nodes)
        for node in nodes:
            self._message(node.message, result, node.turn)
        new, self._messages = result.messages[self._messages :], len(result.messages)
        for message in () if result.nodes else new:
            turn = None
            if message.role == "assistant":
                turn, self._replies = self._replies, self._replies + 1
            self._message(message, result, turn)

    def _message(self, message: Message, result: AgentResult, turn: int | None) -> None:
        limit = self._draft.job.limits.observation_bytes
        if turn is not None and self._typed:
            return
        if turn is not None and turn < len(result.turns):
            self._turn(result, turn)
        if message.role == "assistant":
            self._display.assistant(message, limit)
        elif message.role == "tool":
            self._display.observation(message, limit)
        else:
            self._display.task([message])

    def _turn(self, result: AgentResult, number: int) -> None:
        turn = result.turns[number]
        branch = ""
        if turn.branch is not None and turn.branch < len(result.branches):
            label = result.branches[turn.branch].label
            branch = "" if label == "main" else f" ({label})"
        cost = self._draft.cost_usd(result.usage)
        spent = f", ${cost:.4f} so far" if cost else ""
        self._display.note(f"turn {number + 1}{branch}{_facts(turn)}{spent}")

    def _event(self, event: Mapping[str, Any]) -> None:
        if event.get("event") != "stop":
            self._display.note(f"event {json.dumps(event, default=str)[:_EVENT_CHARS]}")


def _facts(turn: Turn) -> str:
    usage = turn.usage
    facts = []
    if usage.prompt_tokens or usage.completion_tokens:
        facts.append(f"{usage.prompt_tokens} + {usage.completion_tokens} tokens")
    if turn.latency_s:
        facts.append(f"{turn.latency_s:.1f} s")
    if turn.finish_reason == "length":
        facts.append("cut off")
    return f": {', '.join(facts)}" if facts else ""
