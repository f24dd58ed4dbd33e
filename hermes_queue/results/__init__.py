"""Reading the stream of results.

archive.py     files with the groups that were trimmed
batches.py     `consume_batches()`
blocking.py    `consume_sync()`
consume.py     `consume()`
consumers.py   consumer groups: state, lag, position
deliveries.py  pending deliveries of a consumer group in Redis
evaluations.py  groups on which nothing may be trained
filters.py     selection of groups by their scores and origin
reader.py      claims, reads ahead, acknowledges
record_file.py  groups of a JSONL file
replay.py      `replay()`
sole_reader.py  one process reads a consumer group
stored.py      a group together with its bodies
trimming.py    deletes groups that every consumer group has read
"""
