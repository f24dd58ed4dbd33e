"""Groups from the results stream into a trainer's steps. Nothing here loads a trainer.

rows.py  token sequences with advantages, checked
"""
