"""Permission to call a model.

admission.py      the calls of a trajectory, while it is in flight at an engine
flights.py        trajectories in flight, by the tokens of their contexts
fleet_limiter.py  permits, counted in Redis for all workers
pressure.py       what an engine's metrics say, and what follows from it
shared_probes.py  results of probes, shared by workers
uncounted.py      waiting time, taken off every clock
"""
