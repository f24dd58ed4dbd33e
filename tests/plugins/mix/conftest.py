"""A Redis with the users that we ship, and an exporter."""

from exporter_process import exporter
from roles_redis import as_role, guarded, redis_7

__all__ = ["as_role", "exporter", "guarded", "redis_7"]
