"""The module in which `celery -A hermes_queue` finds the app."""

from hermes_queue.broker.app import app as app

__all__ = ["app"]
