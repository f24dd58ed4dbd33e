"""A trajectory factory: generate and score LLM-agent trajectories through Redis.

Trainers import from here all that they need to send jobs and read results. Producers, workers
and extensions import from the rooms:

    models.py                   what travels over Redis: jobs, trajectories, groups
    errors.py                   every error, named after the boundary that was crossed
    extensions.py               envs, tools, sinks, ... by name, those of plugins too
    queues.py                   names of lanes and queues
    policy.py                   versions of a policy, and the age of a sample
    wire/        parts of the models
    settings/    one frozen section per component, read from `HERMES_QUEUE_*`
    results/     reading the results stream: consume, batches, replay, lag
    ledger/      state of every trajectory; ledger/fleet/: state that workers share
    keyspace/    one prefix in one Redis: connection, keys, Lua scripts
    bodies/      a record as bytes, in Redis or in an object store
    disk/        files that survive a power loss, locked files
    broker/      everything that uses Celery: app, pool, embedded worker, submission
    agent/       the agent loop; agent/endpoint/: model calls; agent/tokens/: exact tokens
    tools/       one file per tool
    images/      how a task names its root file system
    sandbox/     the contract of a backend, and the backends: local/, modal/
    trainers/    groups for a trainer's steps, each once in its weights
    sinks/       destinations of results: datasets/, atropos/
    view/        pages about runs, groups and trajectories
    telemetry/   logs and metrics
    terminal/    what a terminal is given: nothing that it would obey
    cli/         the command `hermes-queue`
    celery.py         the module in which `celery -A hermes_queue` finds the app
    cancellation.py   cancellations that libraries swallow
    installation.py   a check that no other distribution overwrites our packages
    syntax.py         Python source as a syntax tree, one thread at a time

Names are loaded on first use (PEP 562), so that `import hermes_queue.errors` costs next to
nothing.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from hermes_queue.broker.submission import Enqueued as Enqueued
    from hermes_queue.broker.submission import enqueue as enqueue
    from hermes_queue.broker.submission import enqueue_async as enqueue_async
    from hermes_queue.broker.submission import make_jobs as make_jobs
    from hermes_queue.errors import ConfigurationError as ConfigurationError
    from hermes_queue.errors import HermesQueueError as HermesQueueError
    from hermes_queue.errors import InputError as InputError
    from hermes_queue.errors import PayloadTooLarge as PayloadTooLarge
    from hermes_queue.errors import RedisFull as RedisFull
    from hermes_queue.errors import RedisUnavailable as RedisUnavailable
    from hermes_queue.errors import SchemaTooNew as SchemaTooNew
    from hermes_queue.ledger.policy import set_policy_version as set_policy_version
    from hermes_queue.models import AgentSpec as AgentSpec
    from hermes_queue.models import AttemptRecord as AttemptRecord
    from hermes_queue.models import Failure as Failure
    from hermes_queue.models import GroupPolicy as GroupPolicy
    from hermes_queue.models import Limits as Limits
    from hermes_queue.models import Message as Message
    from hermes_queue.models import ScoredTrajectory as ScoredTrajectory
    from hermes_queue.models import TokenSequence as TokenSequence
    from hermes_queue.models import ToolCall as ToolCall
    from hermes_queue.models import ToolCallCounts as ToolCallCounts
    from hermes_queue.models import TrajectoryGroup as TrajectoryGroup
    from hermes_queue.models import TrajectoryJob as TrajectoryJob
    from hermes_queue.models import Turn as Turn
    from hermes_queue.models import Usage as Usage
    from hermes_queue.models import make_ids as make_ids
    from hermes_queue.results.blocking import HeldGroup as HeldGroup
    from hermes_queue.results.blocking import SyncConsumer as SyncConsumer
    from hermes_queue.results.blocking import consume_sync as consume_sync
    from hermes_queue.results.consume import DeliveredGroup as DeliveredGroup
    from hermes_queue.results.consume import consume as consume
    from hermes_queue.results.consume import consume_batches as consume_batches
    from hermes_queue.results.consumers import Lag as Lag
    from hermes_queue.results.consumers import consumer_lag as consumer_lag
    from hermes_queue.results.consumers import rewind as rewind
    from hermes_queue.results.replay import replay as replay

_HOMES = {
    "broker.submission": "Enqueued enqueue enqueue_async make_jobs",
    "errors": "ConfigurationError HermesQueueError InputError PayloadTooLarge RedisFull "
    "RedisUnavailable SchemaTooNew",
    "ledger.policy": "set_policy_version",
    "models": "AgentSpec AttemptRecord Failure GroupPolicy Limits Message ScoredTrajectory "
    "TokenSequence ToolCall ToolCallCounts TrajectoryGroup TrajectoryJob Turn Usage make_ids",
    "results.blocking": "HeldGroup SyncConsumer consume_sync",
    "results.consume": "DeliveredGroup consume consume_batches",
    "results.consumers": "Lag consumer_lag rewind",
    "results.replay": "replay",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("hermes-queue")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({name for name in globals() if name.startswith("__")} | {*__all__})
