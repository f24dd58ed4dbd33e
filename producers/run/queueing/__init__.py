"""How a run is queued beside others.

part.py  options: the run's part of the slots
"""
