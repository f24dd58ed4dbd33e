"""Stages with places of their own: how many trajectories may be in one at once.

places.py  places in this worker and in the fleet, taken when a stage begins
"""
