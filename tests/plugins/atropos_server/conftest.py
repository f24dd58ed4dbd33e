"""A real Atropos server, a trainer, and groups in a real Redis."""

from atropos_fixtures import api, put, start, trainer

__all__ = ["api", "put", "start", "trainer"]
