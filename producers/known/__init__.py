"""Rows chosen, ordered and estimated by what is remembered of their tasks.

choose.py    which tasks are worth running
consult.py   the memory, asked for the rows of a run
estimate.py  how long a run will take, and what it will cost
options.py   the flags
"""
