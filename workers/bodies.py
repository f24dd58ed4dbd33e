"""Moves bodies to Redis; large ones go to the object store first, if there is one."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

from hermes_queue.bodies.store import ObjectStore
from hermes_queue.errors import StoreUnavailable
from hermes_queue.keyspace.calls import Confirmation
from hermes_queue.ledger import Ledger, PublishVerdict
from hermes_queue.ledger.fleet import objects
from hermes_queue.models import ScoredTrajectory
from hermes_queue.settings import RedisSettings, ResultSettings, StoreSettings

logger = logging.getLogger(__name__)


class Bodies:
    """Stores and deletes the bodies of one worker process. Calls block; thread-safe.

    `inline` is the maximum of bytes of a body in Redis. Without a `store`, Redis holds all.
    """

    def __init__(
        self,
        store: ObjectStore | None,
        settings: StoreSettings,
        inline: int,
        confirm: Confirmation | None = None,
    ) -> None:
        self.confirm = confirm
        """Replicas that are to have a change of a job before its worker goes on; None = none."""
        self._store = store
        self._settings = settings
        self._inline_bytes = inline

    @classmethod
    def from_settings(cls, redis_url: str) -> Bodies:
        """Make it from the environment.

        Raises:
            ConfigurationError: the store is unusable; the message gives the reason.
        """
        settings = StoreSettings()
        store = ObjectStore.from_settings(settings, redis_url)
        redis = RedisSettings()
        confirm = None
        if redis.confirm_replicas:
            confirm = Confirmation(redis.confirm_replicas, redis.confirm_timeout_s)
        return cls(store, settings, ResultSettings().inline_max_bytes, confirm)

    @property
    def max_bytes(self) -> int:
        """Maximum size of a body."""
        return self._settings.max_bytes if self._store else self._inline_bytes

    def is_large(self, body: bytes) -> bool:
        """Whether `body` goes to the store."""
        limit = min(self._settings.from_bytes, self._inline_bytes + 1)
        return self._store is not None and len(body) >= limit

    def stored(self, ledger: Ledger, record: ScoredTrajectory, body: bytes) -> bytes:
        """Return what Redis shall hold: `body`, or, once it is in the store, its claim.

        Safe to repeat: the same body has the same place.

        Raises:
            StoreUnavailable, RedisUnavailable, RedisFull: repeat the call.
        """
        if self._store is None or not self.is_large(body):
            return body
        digest = hashlib.sha256(body).hexdigest()
        turn = 0
        while True:
            url = self._store.place(record.run_id, digest, turn)
            noted = objects.NotedObject(record.trajectory_id, url)
            if objects.note_object(ledger, noted, grace_s=self._settings.grace_s):
                return self._store.put(url, body).encode()
            turn += 1  # a janitor is deleting that very object: a put would be lost

    def publish_found(
        self,
        ledger: Ledger,
        record: ScoredTrajectory,
        body: bytes,
        *,
        owner: str,
        finished_ttl_s: int,
    ) -> PublishVerdict:
        """Store the body of a record that a dead `owner` left on disk, and publish its claim.

        Raises:
            StoreUnavailable, RedisUnavailable, RedisFull: it may be published; repeat the call.
        """
        while True:
            travels = self.stored(ledger, record, body)
            verdict = ledger.publish(
                record,
                travels,
                owner=owner,
                finished_ttl_s=finished_ttl_s,
                confirm=self.confirm,
                from_disk=True,
            )
            # "unstored": between our put and this publication the object was deleted as unneeded. A
            # record that names it would have no body, so store the body again.
            if verdict != "unstored":
                return verdict

    def remove_unneeded(self, ledger: Ledger, stop: Callable[[], bool]) -> int:
        """Delete objects that no body names any more, until `stop()`; returns their number.

        Raises:
            RedisUnavailable, RedisFull: the rest is deleted later.
        """
        if self._store is None:
            return 0
        deleted: list[objects.NotedObject] = []
        grace_s = self._settings.grace_s
        for noted in objects.unneeded_objects(ledger, self._store.url, grace_s=grace_s):
            if stop():
                break
            try:
                self._store.remove(noted.url)
            except StoreUnavailable as error:
                extra = {"action": "object_left"}
                logger.warning("%s will be deleted later: %s", noted.url, error, extra=extra)
                break
            deleted.append(noted)
        objects.objects_gone(ledger, deleted)
        return len(deleted)
