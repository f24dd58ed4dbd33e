"""What an exported file holds: the answers that its page will ask for."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, quote_plus

from hermes_plugins.view import present
from hermes_plugins.view.compare import compare, patch_against
from hermes_plugins.view.index.index import Index
from hermes_plugins.view.records.raw import UnreadableRecord
from hermes_plugins.view.sources.base import RecordGone
from hermes_queue.bodies.findings import TranscriptFinding
from hermes_queue.bodies.reviews import TrajectoryReview
from hermes_queue.errors import InputError
from hermes_queue.telemetry.scrubbing import scrub

TRAJECTORIES_MOST = 2000
TEXT_BYTES = 256 << 10
"""Of each text of a message."""
REFERENCES_MOST = 8
"""Samples of a group up to which each of them can be the reference."""
COMPARED_BYTES = 64 << 20
_PAGE = 500
_DEPTH_MAX = 100

ListedRow = Mapping[str, Any]


@dataclass
class FiledContents:
    """Collects the answers about some trajectories.

    Args:
        index: where they are.
        findings: what judges say of a trajectory, by its id.
        reviews: labels of people, by trajectory id.
        tokens: whether to hold token ids, masks and log-probabilities.
    """

    index: Index
    findings: Callable[[str], Sequence[TranscriptFinding]] = lambda _: ()
    reviews: Mapping[str, TrajectoryReview] = field(default_factory=dict)
    tokens: bool = False
    unreadable: list[str] = field(default_factory=list)
    """Why some could not be read."""

    def answers(
        self, rows: Sequence[ListedRow], title: str, version: str
    ) -> Iterator[tuple[str, Any]]:
        """The paths and answers about these rows, one after the other, so that few are in memory.

        Raises:
            HermesQueueError: a source does not answer.
        """
        shown = [scrubbed(row) for row in rows]
        for place, row in enumerate(rows):
            yield from self._trajectory(row, shown, place).items()
        groups = {
            name: members
            for name, members in _groups(shown).items()
            if self._has_all(name, members)
        }
        for name, members in groups.items():
            yield from self._group(name, members).items()
        many = {name: members for name, members in groups.items() if len(members) > 1}
        listed = [
            {"group": name, "instance": members[0]["instance"], "count": len(members)}
            for name, members in many.items()
        ]
        about = {
            "title": scrub(title),
            "version": version,
            "made": time.time(),
            "rows": shown,
            "groups": listed,
            "left_out": len(set(self.unreadable)),
            "begin": _begin(shown, many),
        }
        yield "/api/filed", about

    def _trajectory(self, row: ListedRow, shown: Sequence[ListedRow], place: int) -> dict[str, Any]:
        name = row["id"]
        raw = self._read(name)
        if raw is None:
            return {}
        path = f"/api/t/{_segment(name)}"
        said = present.shown_findings(raw, [_without_secrets(f) for f in self.findings(name)])
        messages = present.with_passages(
            list(present.each_message(raw, cut_bytes=TEXT_BYTES)), said
        )
        return {
            path: {
                "row": shown[place],
                **present.page(raw, said),
                "review": _label(self.reviews.get(name)),
                "neighbours": _neighbours(shown, place),
                "messages": messages,
                "next": None,
            },
            f"{path}/patch": present.patch(raw),
            f"{path}/verifier": present.verifier(raw),
            **(_sequences(raw, path) if self.tokens else {}),
        }

    def _has_all(self, name: str, members: Sequence[ListedRow]) -> bool:
        """Whether these are the whole group; a part of one would have another mean."""
        whole = self.index.group(name)
        return whole is not None and len(whole["rows"]) == len(members)

    def _group(self, name: str, members: Sequence[ListedRow]) -> dict[str, Any]:
        path = f"/api/groups/{_segment(name)}"
        found: dict[str, Any] = {path: {"group": name, "rows": members}}
        if len(members) < 2 or sum(row["bytes"] or 0 for row in members) > COMPARED_BYTES:
            return found
        read = [(row["id"], self._read(row["id"])) for row in members]
        known = [(name, raw) for name, raw in read if raw is not None]
        ids, raws = [name for name, _ in known], [raw for _, raw in known]
        if len(raws) < 2:
            return found
        usual = compare(raws, None)
        found[f"{path}/compare"] = usual
        some = range(len(raws)) if len(raws) <= REFERENCES_MOST else ()
        for n in some:
            found[f"{path}/compare?reference={_value(ids[n])}"] = compare(raws, n)
        for a in some:
            for b in (b for b in some if b != a):
                pair = f"reference={_value(ids[a])}&other={_value(ids[b])}"
                found[f"{path}/patches?{pair}"] = patch_against(raws[a], raws[b])
        return found

    def _read(self, name: str) -> Mapping[str, Any] | None:
        try:
            raw = self.index.read(name)
        except (RecordGone, UnreadableRecord) as error:
            self.unreadable.append(f"{name}: {error}")
            return None
        return None if raw is None else scrubbed(raw)


def chosen_rows(index: Index, query: str, ids: Sequence[str] = ()) -> list[ListedRow]:
    """The rows that a filter meets, newest first, or those of trajectories and groups by id.

    Raises:
        InputError: there is none, an id is unknown, or there are too many.
        FilterError: the filter is not understood.
    """
    found: dict[str, ListedRow] = {}
    for name in ids:
        row = index.row(name)
        group = None if row else index.group(name)
        if not row and not group:
            raise InputError(f"there is no trajectory and no group {present.label(name)!r}")
        found.update({each["id"]: each for each in ([row] if row else (group or {})["rows"])})
    if not ids:
        found = {row["id"]: row for row in _met(index, query)}
    if not found:
        raise InputError("no trajectory meets this")
    return list(found.values())


def _met(index: Index, query: str) -> Iterator[ListedRow]:
    after: str | None = None
    while True:
        page = index.page(query, after=after, limit=_PAGE)
        if page.count > TRAJECTORIES_MOST:
            raise InputError(
                f"{page.count} trajectories, of which one file holds {TRAJECTORIES_MOST}: "
                "choose fewer by --filter"
            )
        yield from page.rows
        after = page.next
        if after is None:
            return


def scrubbed(value: Any, depth: int = 0) -> Any:
    """The value without secrets in its texts; what nests deeper than 100 levels is left out."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Mapping):
        if depth > _DEPTH_MAX:
            return "…"
        return {scrubbed(key): scrubbed(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return "…" if depth > _DEPTH_MAX else [scrubbed(each, depth + 1) for each in value]
    return value


def _without_secrets(finding: TranscriptFinding) -> TranscriptFinding:
    """The quote, too, as it stands in the record without secrets."""
    texts = {name: scrub(getattr(finding, name)) for name in ("quote", "label", "by", "note")}
    return finding.model_copy(update=texts)


def _label(review: TrajectoryReview | None) -> dict[str, Any] | None:
    if review is None or review.label is None:
        return None
    texts = {"note": scrub(review.note), "by": scrub(review.by)}
    return present.shown_review(review.model_copy(update=texts))


def _sequences(raw: Mapping[str, Any], path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for k in range(len(present.sequences(raw))):
        octets = present.tokens(raw, k)
        if octets is not None:
            found[f"{path}/tokens/{k}"] = base64.b64encode(octets).decode()
            found[f"{path}/tokens/{k}/turns"] = {"turns": present.sequence_turns(raw, k)}
    return found


def _groups(rows: Sequence[ListedRow]) -> dict[str, list[ListedRow]]:
    found: dict[str, list[ListedRow]] = {}
    for row in rows:
        if row["group"] is not None:
            found.setdefault(row["group"], []).append(row)
    for members in found.values():
        members.sort(key=lambda row: (row["extra"], row["sample"] or 0))
    return found


def _begin(rows: Sequence[ListedRow], groups: Mapping[str, Sequence[ListedRow]]) -> str:
    """The address with which the file opens; "" = the list."""
    if len(rows) == 1:
        return f"/t/{_segment(rows[0]['id'])}"
    if len(groups) == 1 and len(rows) == len(next(iter(groups.values()))):
        return f"/group/{_segment(next(iter(groups)))}"
    return ""


def _neighbours(rows: Sequence[ListedRow], place: int) -> dict[str, Any] | None:
    if len(rows) < 2:
        return None
    return {
        "before": rows[place - 1]["id"] if place else None,
        "after": rows[place + 1]["id"] if place + 1 < len(rows) else None,
        "position": place + 1,
        "count": len(rows),
    }


def _segment(name: str) -> str:
    """As `encodeURIComponent` has it."""
    return quote(name, safe="-_.!~*'()", errors="replace")


def _value(name: str) -> str:
    """As `URLSearchParams` has it."""
    return quote_plus(name, safe="*-._", errors="replace").replace("~", "%7E")
