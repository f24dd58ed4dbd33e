"""Where the time of slots goes, and what it costs.

division.py  the parts of one lease
drift.py     turns of a record whose tokens drifted
rent.py      the price of a slot while it is held
reports.py   what the leases of this process came to, until it is reported
"""
