"""Sends groups to an Atropos trainer.

client.py         the API over HTTP
intake.py         from the results stream to posts, and back
journal.py        posts that the server holds or the trainer has taken
members.py        groups with members that were not measured
options.py        options and counters
single_flight.py  one process at a time
sink.py           the sink itself
wire.py           the request for one group
"""
