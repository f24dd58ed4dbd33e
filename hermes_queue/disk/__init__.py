"""Files that survive a power loss or are shared by processes.

durable.py  written whole, synced, renamed
frames.py   an append-only file that shows where it is torn
locks.py    the kernel's locks on files
locked.py   held by one process, replaced in one step
"""
