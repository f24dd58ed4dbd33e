"""`hermes-queue mix`: many sources, one producer that keeps the backlog between two marks.

document.py    the TOML file
sources.py     its sources: rows, options and plans
store.py       rows of a source on disk
samplers.py    which row of a source comes next
known.py       pass rates of rows, from the memory of tasks
state.py       how far a mix has come, as it is written down
blend.py       which source comes next: the sequence of groups
server.py      the long-living producer
command.py     what the commands do
"""
