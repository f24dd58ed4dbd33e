"""A record as bytes, in Redis or in an object store, and what is read off it.

access.py    reads, writes and removes objects
codec.py     msgpack with packed arrays, zstd
findings.py  what judges and people noticed, as JSON lines
handed.py    what an agent has done, for the worker that grades it
reviews.py   labels of people, in an append-only file
signs.py     signs of cheating in a transcript
steps.py     entries of turn journals
store.py     bodies under their content hash, and the claims that Redis holds
summary.py   a few facts of a record, for the entry of its group in the stream
"""
