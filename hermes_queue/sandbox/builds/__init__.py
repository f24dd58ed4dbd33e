"""Builds of assets: without network, except the package index.

hosts.py    hosts that a build may reach
network.py  a loopback port that the worker answers
proxy.py    the HTTP proxy to package indexes
"""
