"""Where assets are built: without network, except the package index.

hosts.py    hosts that a build may reach
network.py  a loopback port that the worker answers
proxy.py    the HTTP proxy to package indexes
turn.py     one build at a time per asset and host
"""
