"""Ports inside slots that the worker serves; see `SandboxBackend.listen`.

sockets.py        for backends that can get a socket from inside the slot
relayed.py        for backends that can run a program there, with a stream to it and one from it
relay.py          one run of that program, as seen by the worker
relay_process.py  the program
transport.py      a connection through it
"""
