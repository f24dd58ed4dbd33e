"""What all sections share."""

PREFIX = "HERMES_QUEUE_"
"""Of every environment variable that we read."""
