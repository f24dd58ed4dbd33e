"""Where the time of slots goes, and what it costs.

division.py  the parts of one lease
drift.py     turns of a record whose tokens drifted
rent.py      the price of a slot while it is held
reports.py   accounts of ended leases, until they are reported
"""
