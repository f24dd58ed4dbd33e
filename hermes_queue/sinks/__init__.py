"""Destinations of results.

anonymity.py     keeps endpoints and hosts out of datasets
base.py          the contract of a sink
feed.py          select, write, acknowledge
metering.py      metrics of a sink
selection.py     filters for the rows of a dataset, and for a program's conversations
tracing.py       the span of a write
atropos/         a trainer behind an Atropos API server
datasets/        formats of datasets
"""
