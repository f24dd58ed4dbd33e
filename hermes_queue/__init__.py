"""A trajectory factory: generate and score LLM-agent trajectories through Redis.

What a trainer needs is imported here and stays light; producers and workers import
their own modules.
"""

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
from hermes_queue.results import DeliveredGroup, consume

__all__ = [
    "AgentSpec",
    "AttemptRecord",
    "ConfigurationError",
    "DeliveredGroup",
    "Failure",
    "HermesQueueError",
    "InputError",
    "Limits",
    "Message",
    "PayloadTooLarge",
    "RedisFull",
    "RedisUnavailable",
    "SchemaTooNew",
    "ScoredTrajectory",
    "TokenSequence",
    "ToolCall",
    "ToolCallCounts",
    "TrajectoryGroup",
    "TrajectoryJob",
    "Turn",
    "Usage",
    "consume",
    "make_ids",
    "set_policy_version",
]
