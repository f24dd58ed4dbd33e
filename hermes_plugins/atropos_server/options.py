"""Options of the server, and what a trainer says when it registers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from hermes_queue.models import BranchLabel, Name
from hermes_queue.sinks.atropos.wire import TrainerLimits
from hermes_queue.sinks.base import SinkOptions
from hermes_queue.trainers.rows import MIN_STD
from hermes_queue.wire.branches import TRAINED

AckRuleName = Literal["next", "interval", "file"]

_Text = Annotated[str, StringConstraints(max_length=4096)]
_BIG = 2**53


class AtroposServerOptions(SinkOptions):
    """Options of the server: what it hands out, and when the trainer has it for good."""

    run_id: Name = Field(validation_alias="run", description="Hand out groups of this run.")
    directory: Path = Field(
        description="Directory of the journal, beside the trainer's checkpoints."
    )
    group_size: int = Field(ge=1, description="Sequences per group; others are refused.")
    host: str = Field(
        default="127.0.0.1", description="Address to listen on; others than loopback need a token."
    )
    port: int = Field(default=8000, ge=0, le=65535, description="Port; 0 = any free one.")
    token_file: Path | None = Field(
        default=None,
        description="File with a token that trainers must send: as password in their URL "
        "(http://trainer:TOKEN@host:8000), or as a bearer token.",
    )
    group: str = Field(
        default="atropos-server", min_length=1, description="Name of the consumer group."
    )
    env: str | None = Field(default=None, description="Hand out only groups of this env.")
    max_lag: int | None = Field(
        default=None,
        ge=0,
        description="Policy versions by which a group may be behind when it is handed out. "
        "Default: no bound.",
    )
    on_stale: Literal["drop", "train"] = Field(
        default="drop", description="Drop a group beyond --max-lag, or hand it out and count it."
    )
    min_std: float = Field(
        default=MIN_STD,
        ge=0,
        description="Only groups whose scores have at least this standard deviation; 0 = all.",
    )
    branches: tuple[BranchLabel, ...] = Field(
        default=TRAINED,
        validation_alias="branch",
        description="Send only sequences of a program's branches with this label; may be repeated.",
    )
    messages: bool = Field(default=False, description="Also send the messages of the conversation.")
    ack: AckRuleName = Field(
        default="next",
        description="A batch is the trainer's for good when it asks for the next one, when it does "
        "so after a step at which it said that it saves, or when the file of its checkpoint is "
        "there.",
    )
    checkpoint: str | None = Field(
        default=None,
        description="With --ack file: path that the trainer writes last when it saves step {step}.",
    )
    batches_per_pull: int = Field(
        default=1,
        ge=0,
        description="Answer once that there is no batch after this many, since some trainers pull "
        "until then before they train; 0 = never.",
    )
    in_doubt: Literal["again", "refuse"] = Field(
        default="again",
        description="If the server died while it handed out a batch: hand it out again, or refuse "
        "until the trainer registers again and says what it has.",
    )
    publish_every: int | None = Field(
        default=None,
        ge=1,
        description="Set the run's policy version to the step after every N-th step, once the "
        "trainer goes on. Default: never.",
    )
    redis_url: str | None = None

    @model_validator(mode="after")
    def _checkpoint_has_a_place(self) -> AtroposServerOptions:
        if (self.ack == "file") != (self.checkpoint is not None):
            raise ValueError("--ack file and --checkpoint PATH belong together")
        if self.checkpoint is not None and "{step}" not in self.checkpoint:
            raise ValueError("--checkpoint needs {step} in its path")
        return self


class Registration(BaseModel):
    """What a trainer says of itself in `/register`; all of it is required."""

    model_config = ConfigDict(frozen=True)

    wandb_group: _Text
    wandb_project: _Text
    batch_size: int = Field(ge=1, le=2**20)
    """Sequences per batch."""
    max_token_len: int = Field(ge=-_BIG, le=_BIG)
    checkpoint_dir: _Text
    save_checkpoint_interval: int = Field(ge=-_BIG, le=_BIG)
    starting_step: int = Field(ge=0, le=_BIG)
    """Batches that are in the weights with which it starts."""
    num_steps: int = Field(ge=-_BIG, le=_BIG)

    @property
    def limits(self) -> TrainerLimits:
        """The limits of a batch and its sequences."""
        return TrainerLimits(self.batch_size, self.max_token_len)
