"""Logs and metrics.

endpoint.py   the HTTP server for Prometheus
logs.py       log lines, without secrets
meter.py      counts in this process
metrics.py    every metric, declared once
scrubbing.py  keeps secrets out of what is written
"""
