"""Commands about recorded trajectories: one to look at, others that check them again.

rescore.py  recorded logprobs against those of the server
show.py     one trajectory, or a group, in the terminal
"""
