"""Attempts to score without the fix. Each must score 0.0 on every row.

image.py     attempts on rows with an image
lies.py      code that lies from inside the test process
programs.py  the same for the tests of unittest, Django and SymPy
tamper.py    all cheats by name, as tool calls
"""
