"""`hermes-queue images`.

command.py  the group; pull, build, import, base
kept.py     list, prune
store.py    this host's store, for one command
"""
