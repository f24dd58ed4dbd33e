"""Stages with places and workers of their own: how many trajectories may be in one, and where.

handover.py  the agent in one worker, its grading in another
places.py    places in this worker and in the fleet, taken when a stage begins
"""
