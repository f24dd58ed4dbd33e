"""The model endpoint of a program that runs in a slot: every call is answered and recorded.

calls.py  one call in terms that all APIs share, its answer, and who gives it
tree/     the conversations of a program, and what a call continues
"""
