"""Commands in sandboxes whose provider runs a program with a stream each way.

arguments.py   what a command line cannot carry
deadline.py    waiting for a command with a time limit
marked.py      a stream whose end the command's wrapper marks
shell.py       scripts as text
processes.sh   functions about processes
kill.sh        kills the tree of one command, inside the sandbox
"""
