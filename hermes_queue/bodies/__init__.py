"""A record as bytes, in Redis or in an object store.

access.py  reads, writes and removes objects
codec.py   msgpack with packed arrays, zstd
steps.py   entries of turn journals
store.py   bodies under their content hash, and the claims that Redis holds
"""
