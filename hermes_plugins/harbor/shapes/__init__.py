"""Tasks in other shapes, made into Harbor tasks when they are read.

known.py           the shapes, and which one a folder has
files.py           reading and removing files of task folders
terminal_bench.py  terminal-bench 1: `task.yaml`
../endless/        endless-terminals: `task.json`
"""
