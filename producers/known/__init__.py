"""Rows chosen, ordered and estimated by what is remembered of their tasks.

consult.py   the memory, asked what to run, how long it will take and what it will cost
options.py   the flags
"""
