"""Trajectories in flight at a model engine, simulated: goodput of caps and of what we set.

engine.py    an engine with a paged KV cache: batches, preemption, reuse of prefixes
load.py      trajectories as they come: turns, contexts, tools
policies.py  who may call: a fixed cap, the cap that 429s drive, KV tokens
fleet.py     slots that run the trajectories
live.py      the same question, asked of a real engine
"""
