"""Looking at runs, groups and trajectories: what `hermes-queue view` and `show` have in common.

compare.py  the samples of a group side by side
present/    from a raw record to what is shown of it
"""
