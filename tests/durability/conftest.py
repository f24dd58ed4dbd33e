"""A Redis, workers and slow jobs for the tests that kill things."""

from slow_jobs import factory, start_worker

__all__ = ["factory", "start_worker"]
