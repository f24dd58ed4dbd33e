"""`hermes-queue doctor`: checks this machine, its Redis and its model endpoint.

    bodies.py        the object store
    command.py       the command itself
    deployment.py    jobs, lanes and results that are stuck at the moment
    endpoint.py      a model endpoint
    finding.py       the result of a check
    host.py          isolation, disk, leftovers
    redis_server.py  the Redis server
    slots.py         resources that slots share with the worker

Everything that a check writes (a key, files, an object) is removed at once.
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
    """Yield each finding as soon as it is made; stop at wrong settings, which all checks depend on.

    Args:
        model: model to query at the endpoint; None = the first that the endpoint lists.
        base_url: URL of the endpoint; None = the configured one, if any.
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
        yield ok("installation", "no other distribution has packages of the same names")
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
