"""The model endpoint of a program that runs in a slot: every call is answered and recorded.

account.py     events and refusals, bounded in number
allowance.py   whether one more call may be made
bounds.py      how much the requests of one session may take
calls.py       one call in terms that all APIs share, its answer, and who gives it
delivery.py    what goes out: signs of life, the answer, whether it was taken
equality.py    whether two calls are equal, and how long one is
intake.py      requests as they come in
memory.py      conversations that `previous_response_id` continues
open_calls.py  calls that are sampled, and replies that wait for delivery
opening.py     opens a server without holding up the event loop
server.py      HTTP: paths, the key, limits, one call from its body to its delivery
session.py     the calls of one attempt
tool_calls.py  whether a reply's calls fit the tools that were offered
dialects/      the APIs that programs speak
tree/          the conversations, with replies as they were sampled
"""
