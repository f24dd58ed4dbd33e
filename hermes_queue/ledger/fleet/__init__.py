"""What the workers of a fleet agree on.

breaker.py    circuit breakers of lanes
creations.py  the rate of sandbox creation
lanes.py      known lanes, manual pause
limiter.py    permits of model endpoints
logs.py       last log lines of workers
objects.py    objects of large bodies
probes.py     what probes of endpoints found
sandboxes.py  which sandboxes exist, and whose they are
snapshots.py  which snapshot holds what
tally.py      attempts and endings, counted
totals.py     counters of the whole deployment
"""
