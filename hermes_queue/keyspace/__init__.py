"""One prefix in one Redis: connection, keys, scripts.

connection.py  opens Redis, or says why it cannot be opened
deployment.py  client, prefix, scripts, live workers
keys.py        every key: type, owner, expiry, who may read and write it
scripts.py     the Lua scripts by name
lua/           one transition per file; lua/include/: what they share
"""
