"""Who gets how many of the slots.

shares.py  `shares`: weights, reserved shares, caps, quotas
"""
