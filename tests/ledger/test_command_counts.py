"""How many commands the scripts of a trajectory run in Redis: its processor is the fleet's."""

from __future__ import annotations

from ledger_steps import begin, enqueue, publish
from records import make_job, make_record
from redis_server import RedisServer

from hermes_queue.ledger import Claim, Ledger, Spent
from hermes_queue.models import Usage

MOST = {"begin": 20, "take": 26, "publish": 30, "requeue": 18}
"""For the only member of a group, which opens and closes it, with tokens and a cost."""


def commands(client, call) -> int:
    """Commands that the scripts of `call` have run."""
    client.config_resetstat()
    call()
    stats = client.info("commandstats")
    ours = {"cmdstat_evalsha", "cmdstat_config|resetstat", "cmdstat_config", "cmdstat_info"}
    return sum(each["calls"] for name, each in stats.items() if name not in ours)


def test_a_trajectory_costs_redis_few_commands(server: RedisServer) -> None:
    with server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=server.url)
        warm, job, retried, *_ = jobs = [make_job(instance=f"i{n}") for n in range(6)]
        enqueue(ledger, *jobs)
        begin(ledger, warm)
        publish(ledger, make_record(warm))
        begin(ledger, retried)
        claim = Claim(retried.trajectory_id, 1)
        ledger.requeue(claim, owner="w1", spent=Spent(3, 0.1))
        begin(ledger, retried)
        usage = {"usage": Usage(prompt_tokens=3, completion_tokens=4), "cost_usd": 0.5}
        record = make_record(job).model_copy(update=usage)
        claim = Claim(retried.trajectory_id, 2)
        counts = {
            "begin": commands(client, lambda: begin(ledger, job)),
            "take": commands(client, lambda: begin(ledger, warm, lanes=["train"], slot=1)),
            "publish": commands(client, lambda: publish(ledger, record)),
            "requeue": commands(
                client, lambda: ledger.requeue(claim, owner="w1", spent=Spent(3, 0.1))
            ),
        }
    assert {name: count for name, count in counts.items() if count > MOST[name]} == {}, counts
    assert counts["begin"] > 5, "they are counted"
