"""Where `celery -A hermes_queue` looks for the app."""

from hermes_queue.broker.app import app as app

__all__ = ["app"]
