"""A trajectory factory: generate and score LLM-agent trajectories through Redis.

What a trainer needs, to send jobs and to read results, is imported here and stays light; producers
and workers import their own modules.
"""

from hermes_queue.broker.submission import Enqueued, enqueue, enqueue_async, make_jobs
from hermes_queue.errors import (
    ConfigurationError,
    HermesQueueError,
    InputError,
    PayloadTooLarge,
    RedisFull,
    RedisUnavailable,
    SchemaTooNew,
)
from hermes_queue.ledger.policy import set_policy_version
from hermes_queue.models import (
    AgentSpec,
    AttemptRecord,
    Failure,
    GroupPolicy,
    Limits,
    Message,
    ScoredTrajectory,
    TokenSequence,
    ToolCall,
    ToolCallCounts,
    TrajectoryGroup,
    TrajectoryJob,
    Turn,
    Usage,
    make_ids,
)
from hermes_queue.results.blocking import HeldGroup, SyncConsumer, consume_sync
from hermes_queue.results.consume import DeliveredGroup, consume, consume_batches
from hermes_queue.results.lag import Lag, rewind
from hermes_queue.results.lag import lag as consumer_lag
from hermes_queue.results.replay import replay

__all__ = [
    "AgentSpec",
    "AttemptRecord",
    "ConfigurationError",
    "DeliveredGroup",
    "Enqueued",
    "Failure",
    "GroupPolicy",
    "HeldGroup",
    "HermesQueueError",
    "InputError",
    "Lag",
    "Limits",
    "Message",
    "PayloadTooLarge",
    "RedisFull",
    "RedisUnavailable",
    "SchemaTooNew",
    "ScoredTrajectory",
    "SyncConsumer",
    "TokenSequence",
    "ToolCall",
    "ToolCallCounts",
    "TrajectoryGroup",
    "TrajectoryJob",
    "Turn",
    "Usage",
    "consume",
    "consume_batches",
    "consume_sync",
    "consumer_lag",
    "enqueue",
    "enqueue_async",
    "make_ids",
    "make_jobs",
    "replay",
    "rewind",
    "set_policy_version",
]
