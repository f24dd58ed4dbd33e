"""Spans of trajectories, for the exporter of OpenTelemetry. Nothing runs while that is off.

attempt.py   the spans of one attempt
contents.py  messages and results, without secrets, and bounded
tracer.py    which attempts are traced, and when their spans are made
trajectory.py  the root span, made of a published record
"""
