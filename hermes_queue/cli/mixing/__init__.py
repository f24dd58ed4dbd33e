"""`hermes-queue mix ...`: producers of many sources.

command.py    the commands
measured.py   metrics of mixes, for the exporter
page.py       what `mix show` prints
"""
