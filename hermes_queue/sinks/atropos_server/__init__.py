"""An Atropos API server for trainers, whose batches come from the results stream.

batches.py     batches of one trainer: handed out, again, acknowledged
body.py        the JSON of a group
durability.py  when a batch is the trainer's for good
guard.py       who may ask
http.py        bounded HTTP/1.1
options.py     options; what a trainer says when it registers
routes.py      requests to answers
server.py      the server itself
state.py       what must survive a crash
"""
