"""State that the workers of a fleet share.

breaker.py    circuit breakers of lanes
creations.py  the rate of sandbox creation
lanes.py      known lanes, manual pause
limiter.py    permits of model endpoints
logs.py       last log lines of workers
objects.py    objects of large bodies
probes.py     verdicts of probes of endpoints
sandboxes.py  sandboxes and their owners
snapshots.py  snapshots at a provider
tally.py      recent attempts and endings, counted
totals.py     counters of the whole deployment
"""
