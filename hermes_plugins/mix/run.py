"""What `hermes-queue mix FILE` and `hermes-queue mix check FILE` do."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from hermes_plugins.mix.document import MixDocument, read_mix
from hermes_plugins.mix.known import FromMemory
from hermes_plugins.mix.server import MixKeeper, MixServer
from hermes_plugins.mix.sources import MixSource, open_sources
from hermes_queue.errors import (
    EXIT_INTERRUPTED,
    ConfigurationError,
    RedisFull,
    RedisUnavailable,
)
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.tasks import TaskMemory
from hermes_queue.settings import RedisSettings
from hermes_queue.terminal.output import echo

_HEAD: tuple[str, ...] = (
    "source", "rows", "skipped", "jobs per group", "weight", "share", "epochs", "sampler", "quota"
)  # fmt: skip


def say(text: str) -> None:
    """A line for the person or the log."""
    echo(text, err=True)


def serve_mix(path: Path, *, quiet: bool = False) -> int:
    """Serve the mix that a file describes until it is over, or SIGTERM; the exit code.

    Raises:
        HermesQueueError: see its `exit_code`.
    """
    document = read_mix(path)
    if RedisSettings().url is None:
        raise ConfigurationError(
            "a mix feeds a fleet of workers: set HERMES_QUEUE_REDIS_URL to their Redis (to look "
            f"at the file alone: hermes-queue mix check {path})"
        )
    report: Callable[[str], None] = (lambda _: None) if quiet else say
    with stopped_by_signals() as stop, closing(Ledger.connect()) as ledger, ExitStack() as stack:
        server = MixServer(
            ledger, document, rates=FromMemory(TaskMemory(ledger)), say=report, stop=stop.event
        )
        server.checkpoint.take()
        why, sources = "it failed", {}
        try:
            with MixKeeper(server.checkpoint):
                report(f"mix {document.name}: reading the rows of {len(document.sources)} sources")
                with stop.at_once():
                    sources = _opened(document, stack, report)
                report(f"mix {document.name}: hermes-queue mix show {document.name} shows it")
                is_over = not stop.event.is_set() and server.serve(sources)
            why = "every source is done" if is_over else f"it was stopped ({stop.name})"
        finally:
            with suppress(RedisUnavailable, RedisFull):
                server.checkpoint.end(why)
        report(f"mix {document.name}: ended, {why}; {server.enqueued} jobs enqueued")
        return EXIT_INTERRUPTED if stop.name == "SIGINT" else 0


def check_mix(path: Path, *, as_json: bool = False) -> int:
    """Read the file and all rows, and say what would be served; needs no Redis.

    Raises:
        HermesQueueError: the first fault.
    """
    document = read_mix(path)
    found: list[dict[str, Any]] = []
    with ExitStack() as stack:
        opened = _opened(document, stack, say)
        total = sum(source.table.weight for source in opened.values()) or 1.0
        for source in opened.values():
            found.append(
                {
                    "source": source.name,
                    "rows": len(source.items),
                    "skipped": sum(source.selection.skipped.values()),
                    "group_jobs": source.group_jobs,
                    "weight": source.table.weight,
                    "share": round(source.table.weight / total, 4),
                    "epochs": source.table.epochs,
                    "sampler": source.table.sampler.kind,
                    **{f"quota_{k}": v for k, v in source.table.quota.model_dump().items()},
                }
            )
    if as_json:
        echo(json.dumps({"name": document.name, "sources": found}))
    else:
        _print_sources(found)
    return 0


def _opened(
    document: MixDocument, stack: ExitStack, report: Callable[[str], None]
) -> dict[str, MixSource]:
    found: dict[str, MixSource] = {}
    for source in open_sources(document):
        stack.callback(source.close)
        for line in (*source.selection.skip_lines(), *source.selection.notes):
            report(f"sources.{source.name}: {line}")
        found[source.name] = source
    return found


def _print_sources(found: Sequence[dict[str, Any]]) -> None:
    rows = [_HEAD]
    for each in found:
        quotas = [(each[f"quota_{what}"], what) for what in ("items", "trajectories")]
        rows.append(
            (
                each["source"],
                str(each["rows"]),
                str(each["skipped"]),
                str(each["group_jobs"]),
                f"{each['weight']:g}",
                f"{each['share']:.1%}",
                str(each["epochs"] or "endless"),
                each["sampler"],
                ", ".join(f"{most} {what}" for most, what in quotas if most is not None) or "none",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        echo("  ".join(cells).rstrip())


class _Stop:
    """The signal that has stopped this process."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.name = ""
        self._is_reading = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        again = self.event.is_set() and number == signal.SIGINT
        self.name = signal.Signals(number).name
        self.event.set()
        if again or self._is_reading:
            raise KeyboardInterrupt

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A signal ends the block, in which nothing is enqueued."""
        self._is_reading = True
        try:
            yield
        except KeyboardInterrupt:
            if not self.event.is_set():
                raise
        finally:
            self._is_reading = False


@contextmanager
def stopped_by_signals() -> Iterator[_Stop]:
    """SIGTERM and SIGINT end the batch in hand, then the process."""
    stop = _Stop()
    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
