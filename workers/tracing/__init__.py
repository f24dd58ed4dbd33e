"""Spans of trajectories, for the exporter of OpenTelemetry. Nothing runs while that is off.

attempt.py  the spans of one attempt, with messages and results without secrets
tracer.py   which attempts are traced, when their spans are made, and the root span
"""
