"""What is remembered of tasks across runs.

carried.py     `tasks export` and `tasks import`
remembered.py  `tasks list`, `tasks show` and `tasks forget`
"""
