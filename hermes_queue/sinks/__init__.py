"""Destinations of results.

anonymity.py     keeps endpoints and hosts out of datasets
base.py          the contract of a sink
branches.py      the conversations of a program whose tokens are taken
feed.py          select, write, acknowledge
metering.py      metrics of a sink
selection.py     filters for the rows of a dataset
tracing.py       the span of a write
atropos/         a trainer behind an Atropos API server
datasets/        formats of datasets
"""
