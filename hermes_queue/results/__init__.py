"""The stream of results, read.

archive.py     what was trimmed, in files
batches.py     `consume_batches()`
blocking.py    `consume_sync()`
consume.py     `consume()`
consumers.py   consumer groups in Redis
deliveries.py  a delivered group: ack, nack, reject
filters.py     which groups a consumer wants
lag.py         how far behind a consumer group is
reader.py      claims, reads ahead, answers
reading.py     the state of one consumer group
replay.py      `replay()`
stored.py      a group fetched with its bodies
trimming.py    deletes what everybody has read
"""
