"""A record as bytes, in Redis or in an object store.

access.py  reads, writes and removes objects
claim.py   what Redis holds of a body that lies in a store
codec.py   msgpack with packed arrays, zstd
store.py   bodies under their content hash
"""
