"""Agents by name; `AGENT` makes the chat client of one trajectory.

command.py  is a program in the slot, whose model calls come to the worker
garbage.py  makes malformed calls of every kind
nop.py      stops at once
openai.py   calls a model behind an OpenAI-compatible endpoint
oracle.py   applies the gold answer
recorded.py has the work of an older trajectory put back, for a regrade
replay.py   repeats a stored conversation
slow.py     sleeps in the slot
tamper.py   tries to cheat the verifier
"""
