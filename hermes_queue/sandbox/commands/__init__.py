"""Commands in sandboxes whose provider runs a program with a stream each way.

marked.py      a stream whose end the command's wrapper marks
shell.py       scripts as text
processes.sh   functions about processes
kill.sh        kills the tree of one command, inside the sandbox
"""
