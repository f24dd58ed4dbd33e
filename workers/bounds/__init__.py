"""What keeps a stage from lasting for ever.

copies.py   copying a slot's files and restoring them, with a backend that hangs
limits.py   the limits that a worker sets, beside those of the job
overdue.py  attempts that go on although their stage is over
slots.py    leasing and releasing a slot of a backend that hangs
"""
