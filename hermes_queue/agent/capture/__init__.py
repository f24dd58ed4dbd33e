"""The model endpoint of a program that runs in a slot: every call is answered and recorded.

allowance.py   whether one more call may be made
bounds.py      how much the requests of one session may take
calls.py       one call in terms that all APIs share, its answer, and who gives it
equality.py    whether two calls are equal, and how long one is
open_calls.py  calls that are sampled, and replies that wait for delivery
opening.py     opens a server without holding up the event loop
server.py      HTTP: the key, limits, one call from its first byte to its delivery
session.py     the calls of one attempt, its events, and whether replies fit the tools
dialects/      the APIs that programs speak
tree/          the conversations, with replies as they were sampled
"""
