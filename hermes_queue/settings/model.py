"""Sections of model endpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from hermes_queue.settings.section import PREFIX

ANSWER_MAX_BYTES = 32 << 20
"""Logprobs of 256,000 tokens."""


class ModelSettings(BaseSettings):
    """The chat endpoint of `--agent openai` where a job names none."""

    model_config = SettingsConfigDict(env_prefix=PREFIX + "MODEL_", frozen=True)

    base_url: str | None = None
    """OpenAI-compatible endpoint, e.g. http://127.0.0.1:8000/v1; of several, separated by
    commas, each group uses one. Unset: OPENAI_BASE_URL."""
    api_key: SecretStr | None = None
    """Sent to `base_url` and `trusted_urls`, and nowhere else. Unset: OPENAI_API_KEY; servers
    without keys get "none"."""
    trusted_urls: str | None = None
    """Further endpoints that jobs may name, separated by commas, each with all paths below it,
    e.g. `https://models.example/v1,http://10.0.0.7:8000`."""
    other_urls: Literal["refuse", "without_key"] = "refuse"
    """Jobs that name yet another endpoint fail, or are run there without the key: whoever may
    enqueue can then have workers send requests to any host that they reach."""
    answer_max_bytes: int = Field(default=ANSWER_MAX_BYTES, ge=1 << 16)
    """Of one answer of an endpoint, unpacked; a larger one is a failed call."""
    request_timeout_s: float = Field(default=300.0, gt=0)
    max_retries: int = Field(default=4, ge=0)
    prices: Path | None = None
    """TOML file of prices per model, see docs/models.md. Unset: no cost is known."""
    probe_ttl_s: float = Field(default=3600.0, gt=0)
    """How long an endpoint is known to show tools to its model before it is asked again."""
    pause_max_s: float = Field(default=1800.0, ge=0)
    """How long one call waits for an endpoint that says it is paused, which is no failure."""

    @field_validator("trusted_urls")
    @classmethod
    def _are_urls(cls, text: str | None) -> str | None:
        for url in filter(None, (part.strip() for part in (text or "").split(","))):
            if not url.lower().startswith(("http://", "https://")):
                raise ValueError(f"{url} must start with http:// or https://")
        return text


class LimiterSettings(BaseSettings):
    """How many calls of a model endpoint the whole fleet makes at once, and in a minute.

    The limit on concurrent calls finds itself: it grows while it is used up, and shrinks when
    the endpoint answers 429.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX + "LIMITER_", frozen=True)

    enabled: bool = True
    """False: every call is made at once, and a 429 is this one call's own affair."""
    start_calls: int = Field(default=32, ge=1)
    """Concurrent calls of an endpoint and model that nothing is known of."""
    min_calls: int = Field(default=1, ge=1)
    """The limit never falls below."""
    max_calls: int = Field(default=1024, ge=1)
    """The limit never rises above. Equal to `min_calls`: a fixed limit."""
    growth: float = Field(default=0.05, gt=0, le=1)
    """Share by which the limit grows, at least by one call, in as many calls as it allows."""
    decrease: float = Field(default=0.8, gt=0, lt=1)
    """What a 429 leaves of the limit."""
    probe_rounds: int = Field(default=20, ge=1)
    """How many times the limit in calls must be served before it rises above where calls were
    last refused. Doubles, to at most four times as many, while calls are refused there again."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Of one endpoint and model. Unset: any number."""
    tokens_per_minute: float | None = Field(default=None, gt=0)
    """Prompt and completion together; estimated before a call, corrected after it."""
    burst_s: float = Field(default=6.0, ge=0)
    """Seconds' worth of the two rates that may be used at once."""
    max_wait_s: float = Field(default=1800.0, gt=0)
    """A call that waits for longer fails, and its trajectory is tried again later."""
    redis_grace_s: float = Field(default=3.0, gt=0)
    """While Redis does not answer for so long, calls go on without it, as many per process as
    it had in flight."""
    state_ttl_s: int = Field(default=86400, ge=60)
    """How long what was learnt of an endpoint is kept without calls."""

    @model_validator(mode="after")
    def _in_order(self) -> LimiterSettings:
        if self.min_calls > self.max_calls:
            raise ValueError("min_calls must not be greater than max_calls")
        return self
