"""Continues trajectories of workers that have died or ended.

journal.py   one attempt's turn journal: whether it continues one, and what it adds
kept.py      the turns that are continued
recorder.py  adds turns to the journal while the agent runs
replies.py   notes what the replies to a program cost
unneeded.py  deletes snapshots of trajectories that have ended elsewhere
"""
