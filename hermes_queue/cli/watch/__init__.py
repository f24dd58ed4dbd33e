"""Commands that show a deployment at work.

screen.py  draws an overview
status.py  `status` and `top`
table.py   rows and ages as text
"""
