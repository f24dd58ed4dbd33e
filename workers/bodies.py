"""Bodies on their way to Redis: large ones go to the object store first, if there is one."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

from hermes_queue.bodies.store import ObjectStore
from hermes_queue.errors import StoreUnavailable
from hermes_queue.ledger import Ledger, PublishVerdict
from hermes_queue.ledger.fleet.objects import (
    NotedObject,
    note_object,
    objects_gone,
    unneeded_objects,
)
from hermes_queue.models import ScoredTrajectory
from hermes_queue.settings import ResultSettings, StoreSettings

logger = logging.getLogger(__name__)


class Bodies:
    """What becomes of the bodies of one worker process. Its calls block; thread-safe."""

    def __init__(self, store: ObjectStore | None, settings: StoreSettings, inline: int) -> None:
        """Prepare.

        Args:
            store: takes what is large; None = Redis holds all.
            settings: what is large.
            inline: most bytes of a body in Redis.
        """
        self._store = store
        self._settings = settings
        self._inline_bytes = inline

    @classmethod
    def from_settings(cls, redis_url: str) -> Bodies:
        """As the environment says.

        Raises:
            ConfigurationError: the store cannot be used; the message says why.
        """
        settings = StoreSettings()
        store = ObjectStore.from_settings(settings, redis_url)
        return cls(store, settings, ResultSettings().inline_max_bytes)

    @property
    def max_bytes(self) -> int:
        """Larger bodies cannot travel."""
        return self._settings.max_bytes if self._store else self._inline_bytes

    def is_large(self, body: bytes) -> bool:
        """Whether `body` goes to the store."""
        limit = min(self._settings.from_bytes, self._inline_bytes + 1)
        return self._store is not None and len(body) >= limit

    def stored(self, ledger: Ledger, record: ScoredTrajectory, body: bytes) -> bytes:
        """What Redis shall hold: `body`, or the claim of it, once it is in the store.

        May be repeated: the same body has the same place.

        Raises:
            StoreUnavailable, RedisUnavailable, RedisFull: to be repeated.
        """
        if self._store is None or not self.is_large(body):
            return body
        digest = hashlib.sha256(body).hexdigest()
        turn = 0
        while True:
            url = self._store.place(record.run_id, digest, turn)
            noted = NotedObject(record.trajectory_id, url)
            if note_object(ledger, noted, grace_s=self._settings.grace_s):
                return self._store.put(url, body).encode()
            turn += 1  # that very object is just being deleted

    def publish(
        self,
        ledger: Ledger,
        record: ScoredTrajectory,
        body: bytes,
        *,
        owner: str,
        finished_ttl_s: int,
    ) -> PublishVerdict:
        """Store `body` and publish its claim.

        Raises:
            StoreUnavailable, RedisUnavailable, RedisFull: it may be published; repeat it.
        """
        while True:
            travels = self.stored(ledger, record, body)
            verdict = ledger.publish(record, travels, owner=owner, finished_ttl_s=finished_ttl_s)
            if verdict != "unstored":
                return verdict

    def remove_unneeded(self, ledger: Ledger, stop: Callable[[], bool]) -> int:
        """Delete objects that no body names any more, until `stop()`; returns how many.

        Raises:
            RedisUnavailable, RedisFull: the rest is deleted later.
        """
        if self._store is None:
            return 0
        gone: list[NotedObject] = []
        grace_s = self._settings.grace_s
        for noted in unneeded_objects(ledger, self._store.url, grace_s=grace_s):
            if stop():
                break
            try:
                self._store.remove(noted.url)
            except StoreUnavailable as error:
                logger.warning(
                    "%s is deleted later: %s", noted.url, error, extra={"action": "object_left"}
                )
                break
            gone.append(noted)
        objects_gone(ledger, gone)
        return len(gone)
