"""A record as bytes, in Redis or in an object store.

access.py  reads, writes and removes objects
claim.py   the reference that Redis holds to a body in an object store
codec.py   msgpack with packed arrays, zstd
store.py   bodies under their content hash
"""
