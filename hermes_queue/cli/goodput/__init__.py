"""What the fleet brings, and what that costs.

budget.py     `hermes-queue budget`
command.py    `hermes-queue goodput`
waterfall.py  losses of slot-time as rows
"""
