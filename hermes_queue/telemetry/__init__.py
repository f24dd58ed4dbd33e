"""Logs, metrics and traces.

endpoint.py   the HTTP server for Prometheus
logs.py       log lines without secrets
meter.py      counters and histograms of this process
metrics.py    every metric, declared once
pages.py      what that server serves
scrubbing.py  replaces secrets in everything that is written
otel/         export to an OpenTelemetry collector
"""
