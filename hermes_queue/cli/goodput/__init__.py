"""What the fleet brings, and what that costs.

budget.py     `hermes-queue budget`
command.py    `hermes-queue goodput`
facts.py      what a report says
measured.py   metrics, for the exporter
page.py       it as one HTML file
plots.py      plots as SVG
report.py     `hermes-queue report`
text.py       a report for a terminal
waterfall.py  losses of slot-time as rows
"""
