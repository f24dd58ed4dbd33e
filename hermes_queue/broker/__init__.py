"""Celery, and all that knows it."""
