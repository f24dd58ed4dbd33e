"""`hermes-queue doctor`: checks this machine, its Redis and its model endpoint.

    command.py       the command itself, and the order of the checks
    deployment.py    jobs, lanes and results that are stuck at the moment
    endpoint.py      a model endpoint
    finding.py       the result of a check
    host.py          isolation, disks, files, object store, leftovers
    redis_server.py  the Redis server

Everything that a check writes (a key, files, an object) is removed at once.
"""
