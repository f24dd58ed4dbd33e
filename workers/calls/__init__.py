"""Permission to call a model.

fleet_limiter.py  permits, counted in Redis for all workers
shared_probes.py  results of probes, shared by workers
uncounted.py      waiting time, taken off every clock
"""
