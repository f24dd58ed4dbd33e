"""Tasks of several steps: one instruction after the other, in the same box.

folders.py  the folder of each step: the task's, with the step's files and settings over it
passage.py  from what one step left to the beginning of the next
rewards.py  what the rewards of the steps come to
"""
