"""Facts about a repository's package, read as data.

distribution.py  metadata beside the tree, never installed
project.py       name, version, dependencies, entry points; values that are literals in source
"""
