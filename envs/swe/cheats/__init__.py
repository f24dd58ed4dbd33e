"""Attempts to score without the fix. Each must score 0.0 on every row.

lies.py    code that lies from inside the test process
tamper.py  all cheats by name, as tool calls
"""
