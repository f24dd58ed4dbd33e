"""State that the workers of a fleet share.

creations.py  the rate of sandbox creation
flights.py    trajectories in flight at a model engine, by the tokens of their contexts
handovers.py  work that waits to be graded by another worker
journal.py    turns of running trajectories, from which another worker may continue
lanes.py      known lanes, their breakers and manual pause
limiter.py    permits of model endpoints
notes.py      notes that workers can do without
objects.py    objects of large bodies
pacing.py     runs that follow their trainer
sandboxes.py  sandboxes and their owners
snapshots.py  snapshots at a provider
tally.py      recent attempts and endings, and totals
"""
