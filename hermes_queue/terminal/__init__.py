"""What commands and producers write to a terminal, without anything that it would obey.

escapes.py  characters that would deceive, as visible escapes: `label`, `visible`
output.py   `echo`, `console`
"""
