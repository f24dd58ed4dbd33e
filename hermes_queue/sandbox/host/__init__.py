"""What slots need of Linux.

bubblewrap.py       a set of namespaces, and the way into it
cgroups.py          limits, v1 and v2
descriptors.py      the limit of open files
execution.py        run one process: output cap, time limit, tree kill
image.py            what slots on this host are made of
interpreter.py      the Python that slots see
isolation.py        can this host fence slots off?
left_open.py        streams that background processes hold
paths.py            directories that slots use
pip.py              pip for asset builds
processes.py        processes as /proc shows them
seccomp.py          the system-call filter
user_namespaces.py  ranges of user ids
"""
