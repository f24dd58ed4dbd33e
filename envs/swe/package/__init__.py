"""Facts about a repository's package, read as data.

distribution.py  metadata beside the tree, never installed
literals.py      values that are literals in Python source
project.py       name, version, dependencies, entry points
"""
