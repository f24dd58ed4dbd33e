"""Commands that run attempts in their own process, without Redis and workers.

play.py    one trajectory in this terminal
tasks.py   validation of tasks

What they run stands above this package, so it is imported by name.
"""
