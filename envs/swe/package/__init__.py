"""What a repository says of its own package, read as data.

distribution.py  metadata beside the tree, never installed
literals.py      values that Python source states as literals
project.py       name, version, dependencies, entry points
"""
