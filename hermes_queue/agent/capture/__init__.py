"""The model endpoint of a program that runs in a slot: every call is answered and recorded.

account.py     events and refusals, bounded
allowance.py   whether one more call may be made
branches.py    what a session needs of the tree of replies
calls.py       one call in terms that all APIs share, its answer, and who gives it
equality.py    whether two calls are equal, and how long one is
open_calls.py  calls that are sampled, and replies that wait for delivery
session.py     the calls of one attempt
tool_calls.py  whether a reply's calls fit the tools that were offered
"""
