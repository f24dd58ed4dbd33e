"""One prefix in one Redis: connection, keys, scripts.

connection.py  opens Redis, or says why it cannot be opened
deployment.py  client, prefix, scripts, live workers
scripts.py     the Lua scripts by name
lua/           one transition per file; lua/include/: what they share
"""
