"""Commands that show a deployment at work.

screen.py  how an overview is drawn
status.py  `status` and `top`
table.py   rows and ages as text
"""
