"""Stages with places and workers of their own: how many trajectories may be in one, and where.

graders.py   which workers grade, also while graders are missing
handover.py  the agent in one worker, its grading in another
places.py    places in this worker and in the fleet, taken when a stage begins
"""
