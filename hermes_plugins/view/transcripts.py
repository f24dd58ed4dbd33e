"""What a running trajectory has done so far, asked of its worker while somebody looks.

A worker answers over remote control, for which Redis must let us publish. Where it does not, or
where Celery is not installed, the journal of finished turns in Redis tells most of it.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from redis.exceptions import AuthenticationError, NoPermissionError

from hermes_plugins.view import present
from hermes_plugins.view.answers import Refusal
from hermes_plugins.view.lookup.unfinished import turns_of
from hermes_queue.errors import RedisUnavailable
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger

FRESH_S = 2.0
"""How long an answer is good for everybody who asks the same."""
TIMEOUT_S = 3.0
QUESTIONS_PER_S = 4
"""Of this server, whoever asks."""
WAIT_S = 0.5
"""For the question of somebody else."""
SILENT_S = 15.0
"""A worker that has not answered is not asked for this long."""
REFUSED_S = 60.0
"""A Redis that refuses to pass questions on is not asked to again for this long."""
_KEPT = 32
_STAGE_MAX = 100
_FIELDS = ("state", "owner", "stage", "attempt")

LiveAnswer = Mapping[str, Any]
Show = Callable[[list[Any], int], dict[str, Any]]
"""Makes an answer of messages from a number on."""


class Unanswered(Exception):
    """The worker was not, or could not be, asked; the text says why."""


class Transcripts:
    """Transcripts of what runs. Thread-safe.

    Args:
        ledger: for reading.
        url: Redis under a user that may ask workers; None = as the settings say.
    """

    def __init__(self, ledger: Ledger, url: str | None = None) -> None:
        self._ledger = ledger
        self._url = url
        self._lock = threading.Lock()
        """One question at a time."""
        self._kept: OrderedDict[tuple[str, int, str], tuple[float, LiveAnswer]] = OrderedDict()
        self._asked: list[float] = []
        self._refused_until = 0.0
        self._silent: dict[str, float] = {}
        """Until when workers are not asked, those that did not answer."""

    def after(self, name: str, start: int) -> LiveAnswer:
        """The messages of a trajectory from number `start` on, and where it is.

        Returns:
            `state` as the ledger has it, `source` ("worker", "journal" or "": it does not run),
            `worker`, `stage`, `attempt`, `messages` as `GET /api/t/ID` shows them, `next`, `total`,
            and `note`: why the worker was not asked. A journal numbers its own messages.

        Raises:
            Refusal: Redis does not know it, or there were too many questions.
            RedisUnavailable: it does not answer.
        """
        return self._answer(name, start, _shown)

    def whole(self, name: str, number: int) -> Any:
        """Message `number` of a trajectory, as `GET /api/t/ID/messages/N` shows it.

        Raises:
            Refusal: there is none, it does not run, or there were too many questions.
            RedisUnavailable: Redis does not answer.
        """
        found = self._answer(name, number, _uncut).get("message")
        if found is None:
            raise Refusal(404, "there is no such message")
        return found

    def _answer(self, name: str, start: int, show: Show) -> LiveAnswer:
        key = (name, start, show.__name__)
        if answer := self._fresh(key):
            return answer
        if not self._lock.acquire(timeout=WAIT_S):
            raise _too_many()  # rather than keep a thread of the server busy
        try:
            if answer := self._fresh(key):
                return answer
            answer = self._read(name, start, show)
            self._kept[key] = (time.monotonic(), answer)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return answer
        finally:
            self._lock.release()

    def _fresh(self, key: tuple[str, int, str]) -> LiveAnswer | None:
        """What was answered a moment ago to the same question."""
        kept = self._kept.get(key)
        return kept[1] if kept and time.monotonic() < kept[0] + FRESH_S else None

    def _count(self) -> None:
        now = time.monotonic()
        self._asked = [at for at in self._asked if at > now - 1.0]
        if len(self._asked) >= QUESTIONS_PER_S:
            raise _too_many()
        self._asked.append(now)

    def _read(self, name: str, start: int, show: Show) -> LiveAnswer:
        facts = self._ledger.hash_fields(f"traj:{name}", *_FIELDS)
        state, owner, stage, attempt = facts
        if not state:
            raise Refusal(404, "Redis does not know this trajectory", "it may have ended long ago")
        number = int(attempt) if attempt.isdigit() else None
        where = {"state": state, "stage": stage, "attempt": number, "worker": "", "note": ""}
        if state != "running":
            return {**where, "source": "", "messages": [], "next": start, "total": None}
        self._count()
        worker = self._worker(owner)
        where["worker"] = present.label(worker)
        try:
            said = self._ask(worker, name, start)
        except Unanswered as reason:
            ended = [each for turn in turns_of(self._ledger, name) for each in turn.messages]
            given = [each.model_dump(mode="json", exclude_defaults=True) for each in ended]
            note = f"turns that have ended, since {reason}"
            return {**where, "note": note, "source": "journal", **show(given[start:], start)}
        news = said.get("messages")
        shown = show(news if isinstance(news, list) else [], start)
        total = _whole(said.get("total"), shown["total"])
        where["stage"] = present.label(said.get("stage", stage), _STAGE_MAX)
        where["attempt"] = _whole(said.get("attempt"), number)
        return {**where, "source": "worker", **shown, "total": total}

    def _worker(self, owner: str) -> str:
        """The name under which Celery knows a worker; "" if it has not reported lately."""
        with explained(self._ledger.url):
            found: Any = self._ledger.client.get(self._ledger.key(f"worker:{owner}"))
        try:
            return str(json.loads(found)["name"]) if found else ""
        except (ValueError, KeyError, TypeError):
            return ""

    def _ask(self, worker: str, name: str, start: int) -> Mapping[str, Any]:
        """The worker's answer; raises Unanswered."""
        if not worker:
            raise Unanswered("its worker has not reported lately")
        if time.monotonic() < self._silent.get(worker, 0.0):
            raise Unanswered("its worker does not answer")
        if time.monotonic() < self._refused_until:
            raise Unanswered("this user of Redis may not ask workers")
        try:
            from hermes_queue.broker.pool.remote_control import TOO_OFTEN, ask
        except ImportError as error:
            raise Unanswered(
                f"asking workers needs the package {error.name}: "
                "pip install 'hermes-queue[producer]'"
            ) from error
        arguments = {"trajectory_id": name, "start": start}
        try:
            answers = ask("transcript", [worker], arguments, timeout_s=TIMEOUT_S, url=self._url)
        except RedisUnavailable as error:
            if not refused(error):
                raise
            self._refused_until = time.monotonic() + REFUSED_S
            raise Unanswered("this user of Redis may not ask workers") from error
        said = answers.get(worker)
        if not isinstance(said, Mapping):
            now = time.monotonic()
            self._silent = {name: until for name, until in self._silent.items() if until > now}
            self._silent[worker] = now + SILENT_S
            raise Unanswered("its worker does not answer")
        if said.get("error") == TOO_OFTEN:
            raise _too_many()
        if "error" in said:
            raise Unanswered(f"its worker says: {present.label(str(said['error']))}")
        return said


def _whole(given: object, otherwise: int | None) -> int | None:
    """A number that a worker gave, if it is one."""
    return given if type(given) is int and 0 <= given < 1 << 53 else otherwise


def _too_many() -> Refusal:
    return Refusal(429, "too many running transcripts are followed", Retry_After="2")


def refused(error: BaseException | None) -> bool:
    """Whether Redis has refused a user, or a command to him, which no repetition changes."""
    seen = 0
    while error is not None and seen < 10:
        if isinstance(error, NoPermissionError | AuthenticationError) or "NOPERM" in str(error):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


def _uncut(given: list[Any], start: int) -> dict[str, Any]:
    """The first of these messages, all of it."""
    found = present.message({"messages": [{}] * start + given[:1]}, start)
    return {"message": found, "total": None}


def _shown(given: list[Any], start: int) -> dict[str, Any]:
    """Messages from number `start` on, as they are shown."""
    raw = {"messages": [{}] * start + given}
    shown = present.messages(raw, start)
    behind = shown[-1]["n"] + 1 if shown else start
    return {"messages": shown, "next": behind, "total": start + len(given)}
