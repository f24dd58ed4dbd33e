"""Reading the stream of results.

archive.py     files with the groups that were trimmed
batches.py     `consume_batches()`
blocking.py    `consume_sync()`
consume.py     `consume()`
consumers.py   consumer groups in Redis
deliveries.py  pending deliveries of a consumer group in Redis
filters.py     selection of groups by their scores and origin
lag.py         the lag of a consumer group; rewind
reader.py      claims, reads ahead, acknowledges
reading.py     position of a consumer group in the stream
replay.py      `replay()`
stored.py      a group together with its bodies
trimming.py    deletes groups that every consumer group has read
"""
