"""Tasks with tests and a solution of their own.

validate.py  `tasks validate`
"""
