"""`hermes-queue tasks validate`: measures tasks before anybody trains on them.

course.py    all attempts of one task, each in this process
poisoned.py  whether the tests of a task run the agent's own code
results.py   the file of a validation
session.py   all tasks, with progress
"""
