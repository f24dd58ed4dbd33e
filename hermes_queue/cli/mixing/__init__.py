"""`hermes-queue mix ...`: producers of many sources.

command.py   the commands
page.py      what `mix show` prints
"""
