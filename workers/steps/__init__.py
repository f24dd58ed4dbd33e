"""What fills the agent's place in an attempt that is not one conversation from an empty start.

progress.py  the steps of one attempt, with their verdicts
put_back.py  the recorded work of an older trajectory, for a regrade
"""
