"""Files that survive a power loss or are shared by processes.

durable.py  written in full, synced, then renamed
frames.py   an append-only log that detects a torn end
locks.py    the kernel's locks on files
locked.py   files held by one process and replaced atomically
turn.py     one build at a time per key and host
"""
