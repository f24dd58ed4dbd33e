"""Accounts of slots: where their time went, and what it cost.

drift.py    turns whose tokens are not those that were sampled
fields.py   names of the accounts
goodput.py  what a run or the fleet got for its slots, and what it lost
shared.py   budgets of envs, teams and models
series.py   the course of a run over time
"""
