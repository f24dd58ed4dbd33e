"""Linux parts of slots.

bubblewrap.py       a set of namespaces, and how to enter them
cgroups.py          limits, v1 and v2
descriptors.py      the limit of open files
execution.py        follow one command: output cap, time limit, tree kill
interpreter.py      the Python that slots see
isolation.py        can this host isolate slots?
paths.py            directories that slots use
pip.py              pip for asset builds
processes.py        processes in /proc
seccomp.py          the system-call filter
spawned.py          a bubblewrap whose commands a spawner starts
spawner.py          commands of slots, started by processes of their own
spawner_process.py  the program of these processes
user_namespaces.py  ranges of user ids
"""
