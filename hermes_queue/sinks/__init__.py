"""Where results go.

anonymity.py  keeps endpoints and hosts out of datasets
base.py       the contract of a sink
feed.py       choose, write, acknowledge
metering.py   metrics of a sink
selection.py  which trajectories become rows
atropos/      an Atropos trainer
datasets/     formats of datasets
"""
