"""Ports inside slots that the worker serves; see `SandboxBackend.listen`.

sockets.py    for backends that can hand the worker a socket from inside the slot
owners.py     the user behind a connection of the loopback interface
"""
