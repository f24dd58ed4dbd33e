"""How an attempt begins.

ready.py   what the host has ready for jobs that wait
rows.py    rows and definitions that are stored beside the jobs
taking.py  from a message to a leased trajectory
"""
