"""Tasks in the Harbor format.

archive...
"""
