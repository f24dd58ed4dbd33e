"""Tasks: in the Harbor format, before anybody trains on them; and what is remembered of them.

carried.py     `tasks export` and `tasks import`
command.py     the group of these commands
remembered.py  `tasks list`, `tasks show` and `tasks forget`
validate.py    `tasks validate`
"""
