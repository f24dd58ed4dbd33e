"""Feeds for the tests of trainers."""

from feeds import feed

__all__ = ["feed"]
