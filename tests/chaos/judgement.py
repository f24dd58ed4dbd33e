"""Compares what journal, stream and consumers say."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hermes_queue.bodies import codec
from hermes_queue.bodies.store import resolve
from hermes_queue.keyspace.keys import may_stay
from hermes_queue.ledger import DeadLetters, Ledger, Runs
from hermes_queue.ledger.accounts.goodput import UNACCOUNTED, goodput_of_run
from hermes_queue.ledger.budgets import accounts
from hermes_queue.models import ScoredTrajectory
from tests.chaos.env import expected_score
from tests.chaos.fleet import CONSUMERS, DoomedFleet
from tests.chaos.producer import RUN, group, poisoned


class Judgement:
    """Lists every broken promise of a run, one line each."""

    def __init__(self, fleet: DoomedFleet, groups: int, seed: int) -> None:
        self.problems: list[str] = []
        self.figures: dict[str, float] = {}
        self._fleet = fleet
        self._enqueued: set[str] = set()
        self._poison: set[str] = set()
        self._tokens: dict[str, int] = {}
        """Tokens in the published records."""
        self._resumed: set[str] = set()
        """Trajectories of which another worker has continued the turns."""
        self._handed: set[str] = set()
        """Trajectories that another worker graded than that of their agent."""
        for index in range(groups):
            first = group(index, seed)[0]
            self._enqueued.add(first.group_id)
            if poisoned(index):
                self._poison.add(first.trajectory_id)

    def judge(self, ledger: Ledger) -> None:
        """Check everything; call it when all is drained and everything but Redis is stopped."""
        published = self._stream(ledger)
        self._journal(published)
        for name in CONSUMERS:
            self._consumer(ledger, name)
        self._leftovers(ledger)
        self._letters(ledger)
        self._slots(ledger)
        self._bookings(ledger)
        self._hand_overs(ledger)

    def _must(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)

    def _stream(self, ledger: Ledger) -> dict[str, float | None]:
        """Check that each group and trajectory is there exactly once, with its correct score."""
        groups: Counter[str] = Counter()
        scores: dict[str, float | None] = {}
        seen: Counter[str] = Counter()
        client: Any = ledger.client
        for _, fields in client.xrange(ledger.key("results")):
            group_id = fields[b"group_id"].decode()
            groups[group_id] += 1
            for name in json.loads(fields[b"members"]):
                seen[name] += 1
                body = client.get(ledger.key(f"body:{name}"))
                found, lost = resolve({name: body})
                if lost:
                    self.problems.append(lost[name])
                    continue
                record = codec.decode_record(found[name])
                scores[name] = record.score
                self._note(record)
                expected = None if name in self._poison else expected_score(record.instance_id)
                self._must(record.score == expected, f"{name}: {record.score}, {record.failure}")
        for group_id in self._enqueued - groups.keys():
            self.problems.append(f"{group_id}: lost, never published")
        for group_id in groups.keys() - self._enqueued:
            self.problems.append(f"{group_id}: published, but never enqueued")
        self.problems += [f"{g}: published {n} times" for g, n in groups.items() if n > 1]
        self.problems += [f"{t}: published {n} times" for t, n in seen.items() if n > 1]
        self.figures["groups"] = len(groups)
        self.figures["trajectories"] = len(seen)
        return scores

    def _note(self, record: ScoredTrajectory) -> None:
        """Remember what the record says of its tokens, and whether it was handed over."""
        usage, name = record.usage, record.trajectory_id
        self._tokens[name] = usage.prompt_tokens + usage.completion_tokens
        events = [each["event"] for each in record.events]
        handovers = events.count("handed_over")
        if "resumed" in events:
            self._resumed.add(name)
        self._must(handovers <= 1, f"{name}: handed over {handovers} times")
        if handovers:
            self._handed.add(name)

    def _journal(self, published: dict[str, float | None]) -> None:
        """Check that every measurement is published, with the measured score."""
        measured = _lines(self._fleet.journal)
        self.figures["measurements"] = len(measured)
        for line in measured:
            name, score = line["trajectory_id"], line["score"]
            if name not in published:
                self.problems.append(f"{name}: measured, but not in the stream")
            elif published[name] != score:
                self.problems.append(f"{name}: {score} measured, {published[name]} published")
        for name in published.keys() - {line["trajectory_id"] for line in measured}:
            self._must(published[name] is None, f"{name}: has a score, but was never measured")

    def _letters(self, ledger: Ledger) -> None:
        """Check for one dead letter per poison job, and no others."""
        letters = Counter(
            letter.fields.get("trajectory_id") or f"letter {letter.id}"
            for letter in DeadLetters(ledger).find()
        )
        self.figures["dead letters"] = letters.total()
        for name in letters.keys() - self._poison:
            self.problems.append(f"{name}: a dead letter, but not a poison job")
        for name in self._poison:
            self._must(letters[name] == 1, f"{name}: poison, and {letters[name]} dead letters")

    def _consumer(self, ledger: Ledger, name: str) -> None:
        """Check that each group reached this reader, and that repetitions are identical."""
        got: dict[str, object] = {}
        lines = _lines(self._fleet.consumed(name))
        for line in lines:
            known = got.setdefault(line["group"], line["scores"])
            self._must(known == line["scores"], f"{line['group']}: {name} got two versions")
        self.figures[f"repeated deliveries to {name}"] = len(lines) - len(got)
        for group_id in self._enqueued - got.keys():
            self.problems.append(f"{group_id}: never reached the consumer group {name}")
        pending = ledger.client.xpending(ledger.key("results"), name)["pending"]
        self._must(pending == 0, f"{name}: {pending} groups delivered and not acknowledged")

    def _slots(self, ledger: Ledger) -> None:
        """Check that each second of a slot has one account, and that deaths have theirs."""
        found: Counter[str] = Counter()
        for run_id in Runs(ledger).ids():
            good = goodput_of_run(ledger, run_id)
            leased_s = accounts(ledger, run_id, now=time.time())["slot_s"].spent
            # A worker that was slow to learn that its lease had ended goes on for a beat.
            twice_s = good.leased_s - leased_s
            self._must(twice_s <= 0.05 * leased_s + 1, f"{run_id}: {twice_s:.1f} s counted twice")
            found.update({name: round(1000 * s) for name, s in good.seconds.items()})
        for name in ("death", UNACCOUNTED):
            self.figures[f"slot-seconds: {name}"] = round(found[name] / 1000, 1)
        self.figures["slot-seconds"] = round(found.total() / 1000, 1)

    def _bookings(self, ledger: Ledger) -> None:
        """Check that the budget has the tokens of each published record, and none twice.

        Those of agents that died with their worker may be in it or not.
        """
        replies = _lines(self._fleet.spent)
        paid = sum(line["tokens"] for line in replies)
        published = sum(self._tokens.values())
        account = accounts(ledger, RUN, now=time.time())["tokens"]
        self._must(account.spent >= published, f"{account.spent} tokens of {published} are booked")
        self._must(account.spent <= paid, f"{account.spent} tokens are booked, {paid} were used")
        for budget in accounts(ledger, RUN, now=time.time()).values():
            self._must(not budget.reserved, f"{budget.reserved} of {budget.name} stay reserved")
        self.figures["tokens of agents"] = paid
        self.figures["tokens booked"] = account.spent
        self.figures["tokens published"] = published
        self.figures["continued in another worker"] = len(self._resumed)

    def _hand_overs(self, ledger: Ledger) -> None:
        """Check that nothing is left of work on its way, and no place of a stage is taken."""
        client: Any = ledger.client
        for pattern in ("handover:*", "handed", "journal:*"):
            for raw in client.scan_iter(ledger.key(pattern), count=1000):
                self.problems.append(f"left in Redis: {raw.decode()}")
        for raw in client.scan_iter(ledger.key("limit:stage://*:leases"), count=1000):
            taken = client.zcount(raw, client.time()[0], "+inf")
            self._must(taken == 0, f"{raw.decode()}: {taken} places are taken")
        for path in self._fleet.copies():
            self.problems.append(f"left on disk: {path}")
        if self._fleet.graders:
            self._must(bool(self._handed), "nothing was handed over to graders")
            last = {line["trajectory_id"]: line["stages"] for line in _lines(self._fleet.journal)}
            self.figures["handed over"] = len(self._handed)
            others = sum(last.get(name) == "agent" for name in self._handed)
            self.figures["- graded while graders were gone"] = others

    def _leftovers(self, ledger: Ledger) -> None:
        """Check that no process, directory, spool file or unlisted key is left."""
        allowed = {self._fleet.redis.pid} if self._fleet.redis else set()
        for pid, command in self._fleet.processes():
            self._must(pid in allowed, f"process {pid} is left: {command}")
        for pattern in ("slots/*", "spool/**/*.record", "spool/**/*.records"):
            for path in self._fleet.cache.glob(pattern):
                self.problems.append(f"left on disk: {path}")
        for raw in ledger.client.scan_iter(ledger.key("*"), count=1000):
            name = raw.decode().removeprefix(ledger.prefix)
            known = may_stay(name) or name.startswith("_kombu.")  # as kombu names its bindings
            if not known and ledger.client.ttl(raw) == -1:
                self.problems.append(f"key without expiry: {name}")


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file; a kill may have torn the last one."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
