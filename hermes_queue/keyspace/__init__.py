"""A connection to one Redis, the keys below one prefix, and the Lua scripts.

calls.py       calls of scripts that travel together
connection.py  opens Redis; explains why it cannot be opened
deployment.py  client, prefix, scripts, live workers
keys.py        every key: type, owner, expiry, rights
scripts.py     the Lua scripts by name
sentinel.py    a master that Redis Sentinel knows
lua/           one transition per file; lua/include/: shared parts
"""
