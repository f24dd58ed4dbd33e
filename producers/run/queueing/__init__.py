"""How a run is queued beside others.

budgets.py  options: what the run may use before it pauses
part.py     options: the run's part of the slots
"""
