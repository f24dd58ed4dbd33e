"""A long run of no-op trajectories, and a verdict on everything that could grow.

__main__.py   the command line: starts everything, samples, ends with a table
samples.py    what is sampled
trends.py     whether a series is flat, bounded or grows
work.py       the producer: run after run, never too many jobs ahead
"""
