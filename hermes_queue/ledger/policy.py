"""The policy version of a run, as its trainer reports it."""

from __future__ import annotations

from contextlib import closing

from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger.ledger import RUN_TTL_S, Ledger
from hermes_queue.policy import VERSION_MAX


def set_version(ledger: Ledger, run_id: str, version: int, *, force: bool = False) -> int | None:
    """Set the policy version of a run, see `set_policy_version`. The run need not exist yet."""
    if not 0 <= version <= VERSION_MAX:
        raise ConfigurationError(f"policy version {version}: use 0 to {VERSION_MAX}")
    answer = ledger.call(
        "run_policy", run_id=run_id, version=version, force=force, run_ttl_s=RUN_TTL_S
    )
    if not answer.done:
        raise ConfigurationError(
            f"run {run_id!r} is at policy version {answer.before.decode()}, which is newer than "
            f"{version}"
        )
    return int(answer.before) if answer.before else None


def version_of(ledger: Ledger, run_id: str) -> int | None:
    """The policy version of a run; None if nobody has set one."""
    [version] = ledger.hash_fields(f"run:{run_id}", "policy_version")
    return int(version) if version else None


def set_policy_version(
    run_id: str, version: int, *, url: str | None = None, force: bool = False
) -> int | None:
    """Report, from a trainer, the policy version that a run's endpoints serve now.

    Call it when the new weights are live everywhere. Samples that began before, and whose server
    reports no version, count as sampled with the previous version.

    Args:
        run_id: of the run.
        version: counts up, e.g. the trainer's step.
        url: of Redis; None takes `HERMES_QUEUE_REDIS_URL`.
        force: allow a version older than the present one, e.g. after going back to a checkpoint.

    Returns:
        The previous version, None if there was none.

    Raises:
        ConfigurationError: not a version, older than the present one, or no URL.
        RedisUnavailable: the version may or may not be set; repeat the call.
    """
    with closing(Ledger.connect(url=url)) as ledger:
        return set_version(ledger, run_id, version, force=force)
