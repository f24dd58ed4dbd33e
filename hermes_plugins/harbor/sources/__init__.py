"""Where Harbor tasks come from, and which of them are run.

datasets.py   folders of tasks, and registries of tasks in git
rows.py       rows of datasets that hold whole tasks
inspect.py    what a producer looks at before a task is enqueued
validated.py  the file of a validation
chosen.py     tasks that a validation measures
base_image.py the image that the bundled tasks start from
"""
