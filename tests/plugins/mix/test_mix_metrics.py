"""The exporter tells how far mixes have come, whatever else producers write in their place."""

from __future__ import annotations

import json
import os

from mixes import write_mix
from worker_process import wait_until
from zygote import start_forked

from hermes_plugins.mix import measured
from hermes_plugins.mix.measured import MIXES_MAX
from hermes_plugins.mix.tuning import tune
from hermes_queue.cli.exporter import Exporter
from hermes_queue.telemetry import metrics


def read(ledger):
    return {m: dict(values) for m, values in Exporter(ledger, lanes=(), scan_s=0.001).values()}


def test_backlog_rows_weights_and_epochs_of_a_mix_are_told(ledger, redis_server, tmp_path):
    head = "backlog = { low = 4, high = 12 }"
    file = write_mix(tmp_path, {"a": "weight = 2", "b": "", "c": "pause = true"}, head=head)
    environment = {**os.environ, "HERMES_QUEUE_REDIS_URL": redis_server.url}
    process = start_forked("hermes_queue.cli", "mix", file, environment=environment)
    try:
        wait_until("full", lambda: ledger.run_status("m").queued == 12)
        tune(ledger, "m", {"b.weight": "3"}, ["a", "b", "c"])
        found = read(ledger)
    finally:
        process.kill()
        process.communicate(timeout=30)
    assert found[measured.SERVED] == {("m",): 1}
    assert found[measured.JOBS] == {("m", "waiting"): 12, ("m", "running"): 0}
    assert found[measured.ROWS] == {("m", "a"): 8, ("m", "b"): 4, ("m", "c"): 0}
    assert found[measured.WEIGHT] == {("m", "a"): 2, ("m", "b"): 3, ("m", "c"): 0}
    assert set(found[measured.EPOCH].values()) <= {1, 2, 3}


def source(**more):
    settings = {"weight": 1, "items": None, "trajectories": None, "pause": False}
    return {"rows": 1, "group_jobs": 1, "sampler": "s", "epochs": 1, "settings": settings, **more}


def test_what_is_no_mix_takes_no_metric_away(ledger):
    client, huge = ledger.client, "1" + 400 * "0"
    described = {"good": source(), "huge": source(rows=float("inf")), "none": 3}
    states = {"good": {"items": int(huge), "epoch": 2}}
    fields = {"sources": json.dumps(described), "state": json.dumps({"sources": states})}
    client.hset("hq:mix:junk", mapping={"fence": 1, **fields})
    client.hset("hq:mix:junk:live", mapping={"good.weight": "inf", "low": "9" * 1000})
    client.set("hq:mix:string", "x")
    client.hset("hq:mix:long", mapping={"fence": 1, "sources": "[" * (3 << 20)})
    client.hset("hq:run:long", "total", "many")
    client.zadd("hq:mixes", {"junk": 1, "string": 2, "long": 3, b"\xff": 4})
    found = read(ledger)
    assert found[metrics.UP] == {(): 1}
    assert found[measured.ROWS] == {("junk", "good"): 2**53}
    assert found[measured.WEIGHT] == {("junk", "good"): 0}
    client.delete("hq:mixes")
    client.set("hq:mixes", "x")
    assert read(ledger)[measured.JOBS] == {}


def test_of_many_mixes_those_that_were_started_last_are_told(ledger):
    for number in range(2 * MIXES_MAX):
        ledger.client.hset(f"hq:mix:m{number}", "fence", 1)
        ledger.client.zadd("hq:mixes", {f"m{number}": number})
    found = {name for (name,) in read(ledger)[measured.SERVED]}
    assert found == {f"m{number}" for number in range(MIXES_MAX, 2 * MIXES_MAX)}
