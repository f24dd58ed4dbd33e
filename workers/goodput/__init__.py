"""Where the time of slots goes, and what it costs.

rent.py     the price of a slot while it is held
reports.py  accounts of ended leases and of drifted tokens, until they are reported
"""
