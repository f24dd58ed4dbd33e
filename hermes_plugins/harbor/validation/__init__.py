"""`hermes-queue tasks validate`: measures tasks before anybody trains on them.

attempts.py  one attempt in this process
course.py    all attempts of one task
poisoned.py  whether the tests of a task run the agent's own code
results.py   the file of a validation
session.py   all tasks, with progress
"""
