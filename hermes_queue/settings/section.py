"""The prefix of all settings."""

PREFIX = "HERMES_QUEUE_"
"""Prefix of all environment variables that we read."""
