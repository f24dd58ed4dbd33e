"""One trajectory in this process and before the eyes of a person: `hermes-queue play`.

attempt.py        a job's one attempt, without Redis, on an event loop of its own
command.py        the command's flags
background.py     an event loop beside the main thread
entry.py          what a person enters: tool calls, answers, commands of the session
human.py          the agent that passes on what a person enters
interruptible.py  a backend whose running commands a person can interrupt
person.py         asks for the next message and waits for what follows
screen.py         messages, calls and the verdict as text for a terminal
session.py        the whole of it: `play`; what an agent does, shown while it does it
"""

from hermes_queue.plugins import Command, Plugin

PLUGIN = Plugin(
    name="play",
    purpose="Play one trajectory by hand, or watch an agent; no Redis needed.",
    code_lines=1_000,
    extensions={"agent": {"human": "hermes_plugins.play.human:AGENT"}},
    commands={
        "play": Command(
            "hermes_plugins.play.command:play",
            "Play one trajectory by hand, or watch an agent; no Redis needed.",
        ),
    },
)
