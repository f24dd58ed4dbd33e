"""What feeds, mixes and passes over recorded groups are made of. Nothing here loads a trainer.

acks.py     what a feed owes Redis
epochs.py   further passes over recorded groups
expected.py  whether the run is what its trainer takes it for
left_out.py sampled tokens that are not trained
lease.py    one process reads a consumer group
options.py  what a feed takes, and what it counts
pace.py     how far the run may be ahead of the trainer
policy.py   the policy version of a run, which the trainer raises
ranks.py    groups split over the ranks of a trainer
window.py   whose turn it is, and how old a group is
"""
