"""Groups for an Atropos trainer.

client.py         the API over HTTP
intake.py         from the stream to posts, and back
journal.py        what the server holds, what the trainer took
members.py        groups with members that were not measured
options.py        options and counters
single_flight.py  one process at a time
sink.py           the sink itself
wire.py           what the API takes for one group
"""
