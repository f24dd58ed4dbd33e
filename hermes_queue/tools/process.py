"""Runs background processes in the slot: servers, watchers, interactive programs.

All state is in the slot, one directory for each process below `$TMPDIR/processes`, so the tool also
knows the processes of an earlier call. A supervisor, the leader of a session of its own, starts the
command, keeps its standard input open, and writes its exit code.
"""

from __future__ import annotations

import shlex
from typing import Literal, Self

from pydantic import Field, model_validator

from hermes_queue.tools.base import Arguments, Line, Tool, ToolContext, ToolResult

MAX_PROCESSES = 100
"""Processes of one trajectory, ended ones included."""
SETTLE_S = 0.5
"""Time in which a process that was started or written to can show its first output."""
WAIT_S = 30.0
MARGIN_S = 2.0
"""Left of a call's time for the script around a wait."""
ROOM_BYTES = 300
"""Bytes of the observation reserved for the status line."""

Action = Literal["start", "list", "read", "write", "wait", "kill"]

_SUPERVISOR = """
cd "$2" || exit
sleep 2147483647 >"$1/in" &
keeper=$!
bash "$1/command" <"$1/in" >>"$1/out" 2>&1 &
echo "$keeper" >"$1/keeper"
wait $!
echo $? >"$1/exit.new"
mv "$1/exit.new" "$1/exit"
kill "$keeper"
"""
# What the model wrote comes by standard input and in variables, so that there is nothing to quote.
_COMMON = """
all=${TMPDIR:-/tmp}/processes
at=$all/$HQ_ID
state() {
  if [ -e "$1/exit" ]; then echo "exited with code $(head -c 20 "$1/exit")"
  elif kill -0 "$(head -c 20 "$1/pid")" 2>/dev/null; then echo running
  else echo killed
  fi
}
settle() {
  left=$1
  while [ "$left" -gt 0 ] && [ ! -e "$at/exit" ]; do
    [ -n "$HQ_UNTIL" ] && tail -c "+$((seen + 1))" "$at/out" | grep -qF -e "$HQ_UNTIL" && break
    [ "$(state "$at")" = running ] || break
    sleep 0.1
    left=$((left - 1))
  done
}
show() {
  size=$(stat -c %s "$at/out")
  echo "$size" >"$at/seen"
  skipped=0
  [ $((size - seen)) -le "$HQ_ROOM" ] || skipped=$((size - seen - HQ_ROOM))
  echo "$skipped $(state "$at")"
  tail -c "+$((seen + skipped + 1))" "$at/out" | head -c "$HQ_ROOM"
}
if [ -n "$HQ_ID" ]; then
  [ -d "$at" ] || exit 3
  seen=$(head -c 20 "$at/seen" 2>/dev/null || echo 0)
fi
"""
_SCRIPTS: dict[Action, str] = {
    "start": f"""
umask 077
mkdir -p "$all" || exit
HQ_ID=1
until mkdir "$all/$HQ_ID" 2>/dev/null; do
  HQ_ID=$((HQ_ID + 1))
  [ "$HQ_ID" -le {MAX_PROCESSES} ] || exit 4
done
at=$all/$HQ_ID seen=0
cat >"$at/command" && mkfifo "$at/in" && : >"$at/out" || exit
setsid bash -c {shlex.quote(_SUPERVISOR)} supervisor "$at" "$PWD" </dev/null >/dev/null 2>&1 &
echo $! >"$at/pid"
settle "$HQ_TENTHS"
echo "$HQ_ID"
show
""",
    "list": f"""
for ((id = 1; id <= {MAX_PROCESSES}; id++)); do
  [ -d "$all/$id" ] || break
  echo "$id: $(state "$all/$id"): $(head -c 200 "$all/$id/command" | head -n 1)"
done
""",
    "read": "show",
    "write": """
[ "$(state "$at")" = running ] || exit 5
cat >"$at/in"
[ -z "$HQ_EOF" ] || kill "$(head -c 20 "$at/keeper")" 2>/dev/null
settle "$HQ_TENTHS"
show
""",
    "wait": """
settle "$HQ_TENTHS"
show
""",
    "kill": """
group=$(head -c 20 "$at/pid")
kill -TERM -- "-$group" 2>/dev/null
for ((i = 0; i < 10; i++)); do kill -0 -- "-$group" 2>/dev/null || break; sleep 0.1; done
kill -KILL -- "-$group" 2>/dev/null
sleep 0.1
show
""",
}
_REFUSALS = {
    3: "there is no such process; the action list shows those there are",
    4: f"more than {MAX_PROCESSES} processes were started: use the terminal",
    5: "the process no longer runs, so it takes no input",
}


class ProcessArguments(Arguments):
    """Arguments of `process`."""

    action: Action = Field(
        description="start: run `command` in the background. read: its output since the last time. "
        "write: send it `text`. wait: until it ends, or prints `until`. kill: end it and its "
        "children. list: all processes."
    )
    id: int | None = Field(
        default=None, ge=1, le=MAX_PROCESSES, description="The number that start has shown."
    )
    command: Line | None = Field(
        default=None, min_length=1, description="For start: a bash command."
    )
    text: Line | None = Field(
        default=None, description="For write: the input, with its line break at the end."
    )
    eof: bool = Field(default=False, description="For write: close the input after the text.")
    until: Line | None = Field(
        default=None, min_length=1, max_length=1000, description="For wait: text in new output."
    )
    timeout_s: float | None = Field(
        default=None, gt=0, description=f"For wait: at most so long; default {WAIT_S:g}."
    )

    @model_validator(mode="after")
    def _has_what_its_action_needs(self) -> Self:
        if self.action == "start" and self.command is None:
            raise ValueError("start needs `command`")
        if self.action == "write" and self.text is None and not self.eof:
            raise ValueError("write needs `text`, or `eof`: true")
        if self.action not in {"start", "list"} and self.id is None:
            raise ValueError(f"{self.action} needs `id`, the number that start has shown")
        return self


async def run(context: ToolContext, arguments: ProcessArguments) -> ToolResult:
    """Carry out the action; return the process's state and its new output."""
    action = arguments.action
    budget_s = context.budget_s()
    wait_s = (arguments.timeout_s or WAIT_S) if action == "wait" else SETTLE_S
    wait_s = max(0.0, min(wait_s, budget_s - MARGIN_S))
    starts = action == "start"
    result = await context.slot.run(
        _COMMON + _SCRIPTS[action],
        timeout_s=budget_s,
        stdin=((arguments.command if starts else arguments.text) or "").encode(errors="replace"),
        env={
            "HQ_ID": "" if starts or action == "list" else str(arguments.id),
            "HQ_ROOM": str(max(0, context.observation_bytes - ROOM_BYTES)),
            "HQ_TENTHS": str(round(wait_s * 10)),
            "HQ_UNTIL": (arguments.until or "") if action == "wait" else "",
            "HQ_EOF": "yes" if arguments.eof else "",
        },
    )
    if result.exit_code in _REFUSALS:
        return ToolResult(f"[{_REFUSALS[result.exit_code]}]", ok=False)
    if result.timed_out and action == "write":
        return ToolResult("[the process does not read its input]", ok=False)
    if not result.ok:
        why = result.stderr.decode(errors="replace").strip()
        return ToolResult(f"[{action} failed: {why or f'exit code {result.exit_code}'}]", ok=False)
    text = result.stdout.decode(errors="replace")
    if action == "list":
        return ToolResult(text.rstrip("\n") or "[no process was started]")
    number = str(arguments.id)
    if starts:  # a slot whose agent has replaced bash prints anything
        number, _, text = text.partition("\n")
    return ToolResult(_shown(number, text))


def _shown(number: str, text: str) -> str:
    status, _, output = text.partition("\n")
    skipped, _, state = status.partition(" ")
    lines = [f"[process {number}: {state}]"]
    if skipped != "0":
        lines.append(f"[{skipped} bytes left out; all is in $TMPDIR/processes/{number}/out]")
    return "\n".join([*lines, output]).rstrip("\n")


TOOL = Tool(
    name="process",
    description=(
        "Run programs in the background: servers, long builds, interactive programs such as a "
        "Python shell. They keep running between calls and end with the task. There is no "
        "terminal: a program gets its input line by line, and `python3` needs `-i` and `-u`."
    ),
    arguments=ProcessArguments,
    run=run,
)
