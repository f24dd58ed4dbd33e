"""The person at the terminal, on the main thread, and the agent loop on another.

Before each turn the loop asks for a message and waits. Meanwhile the main thread reads lines until
one is a message. It has the signals, too: Ctrl-C clears the line that is being typed, and ends the
command that runs.
"""

from __future__ import annotations

import asyncio
import queue
import sys
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import takewhile
from typing import Any

from hermes_plugins.play.background import BackgroundLoop
from hermes_plugins.play.entry import HELP, EntryReader, Mistake, SessionCommand
from hermes_plugins.play.interruptible import InterruptibleBackend
from hermes_plugins.play.screen import Display
from hermes_queue.errors import Cancelled
from hermes_queue.models import Message
from hermes_queue.sandbox.base import ExecutionRequest
from hermes_queue.tools.base import Tool
from hermes_queue.tools.toolbox import cap
from workers.draft import Draft

DIFF = "git --no-optional-locks status --short && git --no-optional-locks --no-pager diff HEAD"
_DIFF_TIMEOUT_S = 30.0
_NO_REPOSITORY = 128
"""Exit code of git, also for other failures of its own."""
_END = "ended by the person who played"


class Quit(Exception):
    """The person ends the session."""


class Person:
    """Asks for the next message of an agent that is a person."""

    def __init__(self, display: Display, draft: Draft, tools: Sequence[Tool]) -> None:
        self._display = display
        self._draft = draft
        self._tools = tools
        self._entries = EntryReader(tools)
        self._asked: queue.SimpleQueue[Future[Message] | None] = queue.SimpleQueue()
        self._message: Message | None = None
        self._interrupts = 0
        self.has_terminal = sys.stdin is not None and sys.stdin.isatty()
        if self.has_terminal:
            with suppress(ImportError):  # `input` then edits lines and remembers them
                import readline  # noqa: F401

    # --- on the loop's thread ---------------------------------------------------------------

    async def before_turn(self) -> None:
        """Wait for the message of the next turn. Raises Cancelled if the person quits."""
        if len(self._draft.agent.turns) >= self._draft.job.limits.max_turns:
            return  # the loop ends here, and asks for nothing
        wanted: Future[Message] = Future()
        self._asked.put(wanted)
        self._message = await asyncio.wrap_future(wanted)

    def take(self) -> Message:
        """The message that was entered for this turn."""
        if self._message is None:
            raise AssertionError("before_turn has waited for it")
        return self._message

    # --- on the main thread -----------------------------------------------------------------

    def serve(self, thread: BackgroundLoop[Any], backend: InterruptibleBackend) -> None:
        """Enter messages until the attempt has ended.

        Raises:
            KeyboardInterrupt: Ctrl-C where no command of the agent runs.
        """
        thread.result.add_done_callback(lambda _: self._asked.put(None))
        while (wanted := self._next_wanted(thread, backend)) is not None:
            if not self._draft.agent.turns:
                self._display.note("you are the agent; your tools (`:help` says how to use them):")
                self._display.tools(self._tools)
            self._interrupts = 0
            with suppress(InvalidStateError):  # the attempt was ended meanwhile
                try:
                    wanted.set_result(self._entered(thread, backend))
                except (EOFError, Quit) as end:
                    if isinstance(end, EOFError) and self.has_terminal:
                        self._display.say("")  # the cursor stands behind the prompt
                    wanted.set_exception(Cancelled(_END))

    def _next_wanted(
        self, thread: BackgroundLoop[Any], backend: InterruptibleBackend
    ) -> Future[Message] | None:
        while True:
            try:
                return self._asked.get()
            except KeyboardInterrupt:
                self._interrupts += 1
                if self._draft.clock.current != "agent" or self._interrupts > 1:
                    raise
                thread.call(backend.interrupt)
                self._display.note("interrupted; Ctrl-C again ends the session")

    def _entered(self, thread: BackgroundLoop[Any], backend: InterruptibleBackend) -> Message:
        """The next message. Raises EOFError or Quit."""
        while True:
            try:
                text = self._read()
                if not text.strip():
                    continue
                entry = self._entries.read(text)
                if isinstance(entry, Message):
                    return entry
                self._obey(entry, thread, backend)
            except Mistake as mistake:
                self._display.note(str(mistake))
            except KeyboardInterrupt:  # the cursor stands behind the line that was given up
                self._display.say("")
                self._display.note("Ctrl-D or :quit ends the session")

    def _read(self) -> str:
        """One entry, of several lines where they say so. Raises EOFError."""
        turn, most = len(self._draft.agent.turns) + 1, self._draft.job.limits.max_turns
        text = self._line(f"[{turn}/{most}] $ ")
        if text.strip() == ":{":
            lines: list[str] = []
            while (line := self._line("> ")).strip() != ":}":
                lines.append(line)
            return "\n".join(lines)
        lines = [text]
        while _goes_on(lines[-1]):
            lines.append(self._line("> "))
        return "\n".join(lines)

    def _line(self, prompt: str) -> str:
        if self.has_terminal:
            return input(prompt)
        line = sys.stdin.readline() if sys.stdin is not None else ""  # None: it was closed
        if not line:
            raise EOFError
        line = line.rstrip("\r\n")
        self._display.say(prompt + line, fg="yellow")
        return line

    def _obey(
        self, command: SessionCommand, thread: BackgroundLoop[Any], backend: InterruptibleBackend
    ) -> None:
        agent = self._draft.agent
        match command:
            case "quit":
                raise Quit
            case "help":
                self._display.say(HELP)
            case "tools":
                self._display.tools(self._tools)
            case "limits":
                self._display.limits(self._draft.job.limits, len(agent.turns))
            case "prompt":
                self._display.task(takewhile(lambda each: each.role != "assistant", agent.messages))
            case "diff":
                self._display.say(self._diff(thread, backend))

    def _diff(self, thread: BackgroundLoop[Any], backend: InterruptibleBackend) -> str:
        if backend.slot is None:
            return "there is no slot"
        limit = self._draft.job.limits.observation_bytes
        request = ExecutionRequest(backend.slot, DIFF, _DIFF_TIMEOUT_S, max_output_bytes=limit)
        [result] = thread.wait(backend.execute_batch([request]))
        if isinstance(result, Exception):
            return str(result)
        if result.exit_code == _NO_REPOSITORY:
            return "the workspace is no git repository: look at it with `ls -la`"
        return cap(result.output or "nothing has changed", limit)


def _goes_on(text: str) -> bool:
    """Whether the text ends in a backslash that is not itself escaped."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1
