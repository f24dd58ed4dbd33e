"""Commands that show a deployment at work.

finite.py     numbers on the command line
running.py    every trajectory that runs
scaling.py    how many slots each lane wants
screen.py     draws an overview
scrolling.py  which table keys move
status.py     `status` and `top`, with the keys of a terminal
table.py      rows, times and numbers as text; times from text
"""
