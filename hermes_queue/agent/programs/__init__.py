"""Agent programs that run in the slot, unmodified.

program.py  how one is installed, started and told where the model is
"""
