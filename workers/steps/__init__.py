"""How an attempt begins, and what fills the agent's place if it is not one conversation.

progress.py  the steps of one attempt, with their verdicts
put_back.py  the recorded work of an older trajectory, for a regrade
ready.py     what the host has ready for jobs that wait
rows.py      rows and definitions that are stored beside the jobs
taking.py    from a message to a leased trajectory
"""
