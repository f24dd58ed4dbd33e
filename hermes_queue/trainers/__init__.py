"""Groups from the results stream into a trainer's steps. Nothing here loads a trainer.

feed.py      takes groups, and acknowledges them at the checkpoint
journal.py   which groups are in the weights of which step
mix.py       groups of several runs or envs by weight
rows.py      token sequences with advantages, checked
versions.py  versions of trainers that the adapters were tested with
window.py    whose turn it is, and how old a group is
sources/     what feeds are made of, and other sources of groups
"""
