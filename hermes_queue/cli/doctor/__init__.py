"""`hermes-queue doctor`: is this machine, its Redis and its model endpoint fit for work?

    bodies.py        the object store
    command.py       the command itself
    deployment.py    what stands still at this moment
    endpoint.py      a model endpoint
    finding.py       what a check finds
    host.py          isolation, disk, leftovers
    redis_server.py  the Redis server
    slots.py         what slots share with the worker

Looks and tries; what it writes (a key, files, an object) it removes at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from hermes_queue.cli.doctor.finding import Finding, Level, error, ok
from hermes_queue.errors import ConfigurationError
from hermes_queue.installation import check_installation
from hermes_queue.settings import SECTIONS, check_environment

__all__ = ["Finding", "Level", "diagnose"]


def diagnose(
    *, model: str | None = None, base_url: str | None = None, token_ids: bool = False
) -> Iterator[Finding]:
    """Every finding as soon as it is made; wrong settings end it, since all else hangs on them.

    Args:
        model: to ask for at the endpoint; None = whichever it lists first.
        base_url: of the endpoint; None = that of the settings, if there is one.
        token_ids: whether runs need token ids and logprobs, as in RL.
    """
    from hermes_queue.cli.doctor.bodies import store_findings
    from hermes_queue.cli.doctor.deployment import deployment_findings
    from hermes_queue.cli.doctor.endpoint import endpoint_findings
    from hermes_queue.cli.doctor.host import host_findings
    from hermes_queue.cli.doctor.redis_server import redis_findings
    from hermes_queue.cli.doctor.slots import descriptor_finding, shared_disk_findings

    try:
        check_environment()
    except ConfigurationError as problem:
        yield error("settings", str(problem))
        return
    yield ok("settings", f"{len(SECTIONS)} sections")
    try:
        check_installation()
        yield ok("installation", "our packages belong to nobody else")
    except ConfigurationError as problem:
        yield error("installation", str(problem))
    ledger = yield from redis_findings()
    try:
        if ledger is not None:
            yield from deployment_findings(ledger)
        yield from shared_disk_findings(ledger)
    finally:
        if ledger is not None:
            ledger.close()
    yield from host_findings()
    yield descriptor_finding()
    yield from store_findings()
    yield from endpoint_findings(model=model, base_url=base_url, token_ids=token_ids)
