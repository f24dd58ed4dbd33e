"""Who gets how many of the slots.

measured.py  its metrics
shares.py    `shares`: weights, reserved shares, caps, quotas
"""
