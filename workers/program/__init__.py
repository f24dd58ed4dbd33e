"""The agent stage of a program that runs in the slot.

choice.py    the program of a job, and the slot that it needs
files.py     what is put into the slot for it, and what it leaves
process.py   runs it until it ends or has to
run.py       from the endpoint's start to a slot in which nothing of it runs; what its end means
"""
