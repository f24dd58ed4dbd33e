"""One trajectory in this process and before the eyes of a person: `hermes-queue play`.

attempt.py        a job's one attempt, without Redis, on an event loop of its own
entry.py          what a person enters: tool calls, answers, commands of the session
interruptible.py  a backend whose running commands a person can interrupt
live.py           what an agent does, shown while it does it
loop_thread.py    an event loop beside the main thread
person.py         asks for the next message and waits for what follows
screen.py         messages, calls and the verdict as text for a terminal
session.py        the whole of it: `play`
"""
