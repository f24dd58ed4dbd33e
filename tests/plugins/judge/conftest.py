"""Workers, for the tests that end them while a judge thinks."""

from slow_jobs import factory, start_worker

__all__ = ["factory", "start_worker"]
