"""Where assets are built: no network but the package index.

hosts.py    which hosts a build may reach
network.py  a loopback port that the worker answers
proxy.py    the HTTP proxy to package indexes
turn.py     one build at a time per asset and host
"""
