"""Lock files: what a run was made from, so that it can be made again.

contents.py     the lock of a run, and how two of them differ
flags.py        flags as a lock holds them, without secrets
options.py      `--lock`, `--from-lock`
"""
