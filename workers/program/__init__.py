"""The agent stage of a program that runs in the slot.

answer.py    an answer that is given in a call
choice.py    the program of a job, and the slot that it needs
files.py     what is put into the slot for it, and what it leaves
outcome.py   what the end of a program means: an outcome of the agent, or whose failure
process.py   runs it until it ends or has to
run.py       from the endpoint's start to a slot in which nothing of it runs
"""
