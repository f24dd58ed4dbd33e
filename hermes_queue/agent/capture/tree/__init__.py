"""The conversations of a program as one tree, in which each reply stands as it was sampled.

canonical.py    what a message means, whatever way a program writes it
labels.py       which conversation a call belongs to
tree.py         places calls, takes replies, names where a conversation departs
"""

from hermes_queue.agent.capture.tree.canonical import Unplaceable, understood
from hermes_queue.agent.capture.tree.tree import Placement, ReplyTree

__all__ = ["Placement", "ReplyTree", "Unplaceable", "understood"]
