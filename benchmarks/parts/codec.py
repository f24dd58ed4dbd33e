"""Records to bytes and back: `encode_record`, `decode_record`, beside `json` of the same fields.

116 kB (as JSON) are 3,000 tokens and 30 kB of text, 75 kB are 700 tokens and 48 messages. The
other side turns the record's fields, already plain lists and dicts, into JSON text and back; it
neither compresses nor validates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.jobs import jobs, record
from benchmarks.measuring import Cases, Part, Side, Turn, metered
from hermes_queue.bodies.codec import decode_record, encode_record

COUNT = 300


def each(work: Callable[[Any], object], things: Sequence[Any], **facts: float) -> Turn:
    """Do the work once with each of the things."""
    with metered() as meter:
        for thing in things:
            work(thing)
    return meter.turn(len(things), facts=facts)


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """Both sizes, both directions."""
    found: dict[str, dict[str, Side | str]] = {}
    made = list(jobs(max(8, int(COUNT * scale)), group_size=1, env="gsm8k", item={"x": 1}))
    shapes = {
        "116 kB": {"tokens": 3000, "words": 5000},
        "75 kB": {"tokens": 700, "words": 8600, "messages": 48},
    }
    for name, shape in shapes.items():
        records = [record(job, **shape) for job in made]
        bodies = [encode_record(one) for one in records]
        plain = [one.model_dump(mode="json") for one in records]
        texts = [json.dumps(fields) for fields in plain]
        sizes = {"json_bytes": len(records[0].model_dump_json()), "bytes": len(bodies[0])}
        found[f"encode {name}"] = {
            "json": partial(each, json.dumps, plain),
            "ours": partial(each, encode_record, records, **sizes),
        }
        found[f"decode {name}"] = {
            "json": partial(each, json.loads, texts),
            "ours": partial(each, decode_record, bodies, **sizes),
        }
    yield found


PART = Part("record", cases)
