"""What the fleet brings, and what that costs.

command.py    `hermes-queue goodput`
waterfall.py  losses of slot-time as rows
"""
