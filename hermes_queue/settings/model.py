"""Sections of model endpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator

from hermes_queue.settings.section import PREFIX, Section

ANSWER_MAX_BYTES = 32 << 20
"""Enough for the logprobs of 256,000 tokens."""


class ModelSettings(Section, env_prefix=PREFIX + "MODEL_"):
    """The chat endpoint of `--agent openai` for jobs that name none."""

    base_url: str | None = None
    """OpenAI-compatible endpoint, e.g. http://127.0.0.1:8000/v1, or several, separated by commas,
    of which each group uses one. Unset: OPENAI_BASE_URL."""
    api_key: SecretStr | None = None
    """Sent only to `base_url` and `trusted_urls`. Unset: OPENAI_API_KEY; servers without keys get
    "none"."""
    trusted_urls: str | None = None
    """Further endpoints that jobs may name, separated by commas, each with all paths below it, e.g.
    `https://models.example/v1,http://10.0.0.7:8000`."""
    other_urls: Literal["refuse", "without_key"] = "refuse"
    """Action for jobs that name any other endpoint: fail them, or call it without the key. The
    latter allows everybody who may enqueue to make workers send requests to any host they can
    reach."""
    answer_max_bytes: int = Field(default=ANSWER_MAX_BYTES, ge=1 << 16)
    """Largest decoded answer of an endpoint; a larger one counts as a failed call."""
    request_timeout_s: float = Field(default=300.0, gt=0)
    """Longest wait for the answer to one request; then the call is tried again."""
    max_retries: int = Field(default=4, ge=0)
    """Tries of one call after the first one; more make the attempt fail. Tries that meet a paused
    endpoint do not count."""
    max_continuations: int = Field(default=16, ge=0, le=1000)
    """In token mode, a reply that the server aborts is continued from its tokens at most so often,
    and then sampled anew. 0: always anew."""
    prices: Path | None = None
    """TOML file with prices per model, see docs/models.md. Unset: costs are unknown."""
    probe_ttl_s: float = Field(default=3600.0, gt=0)
    """Time for which the result of the tool probe of an endpoint is valid."""
    pause_max_s: float = Field(default=1800.0, ge=0)
    """Time for which a call waits for a paused endpoint; a pause is not a failure."""

    @field_validator("trusted_urls")
    @classmethod
    def _are_urls(cls, text: str | None) -> str | None:
        for url in filter(None, (part.strip() for part in (text or "").split(","))):
            if not url.lower().startswith(("http://", "https://")):
                raise ValueError(f"{url} must start with http:// or https://")
        return text


class LimiterSettings(Section, env_prefix=PREFIX + "LIMITER_"):
    """Limits of the whole fleet's calls to a model endpoint, concurrent and per minute.

    The limit of concurrent calls adapts: it grows while it is used up, and shrinks when the
    endpoint answers 429.
    """

    ordered = (("min_calls", 1, "max_calls"),)

    enabled: bool = True
    """False: calls are not limited, and each call handles a 429 by itself."""
    start_calls: int = Field(default=32, ge=1)
    """Initial limit of concurrent calls of an endpoint and model."""
    min_calls: int = Field(default=1, ge=1)
    """Lower bound of the limit."""
    max_calls: int = Field(default=1024, ge=1)
    """Upper bound of the limit. Equal to `min_calls`: a fixed limit."""
    growth: float = Field(default=0.05, gt=0, le=1)
    """Share by which the limit grows, at least by one call, each time that as many calls were
    served."""
    decrease: float = Field(default=0.8, gt=0, lt=1)
    """Factor by which a 429 reduces the limit."""
    probe_rounds: int = Field(default=20, ge=1)
    """Number of times that the full limit must be served before it rises above the level at which
    calls were last refused. Doubles, up to four times, each time calls are refused there again."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Requests per minute of one endpoint and model. Unset: unlimited."""
    tokens_per_minute: float | None = Field(default=None, gt=0)
    """Prompt and completion tokens per minute, estimated before a call and corrected after it."""
    burst_s: float = Field(default=6.0, ge=0)
    """Burst: seconds' worth of the two rates that may be used at once."""
    max_wait_s: float = Field(default=1800.0, gt=0)
    """A call that waits for longer fails, and its trajectory is retried later."""
    redis_grace_s: float = Field(default=3.0, gt=0)
    """After Redis has not answered for this long, each process continues with as many calls as it
    had in flight."""
    state_ttl_s: int = Field(default=86400, ge=60)
    """Time for which the limit of an endpoint is remembered without calls."""


class EngineSettings(Section, env_prefix=PREFIX + "ENGINE_"):
    """Trajectories in flight at a model engine, as many as its KV cache holds contexts of.

    For endpoints that serve the metrics of vLLM or SGLang; see docs/engine-pressure.md.
    """

    admission: Literal["auto", "off"] = "auto"
    """auto: trajectories are counted at endpoints with such metrics, or with `kv_tokens`. off:
    nothing is read or counted."""
    kv_tokens: int | None = Field(default=None, ge=1024)
    """Tokens that the KV cache of each endpoint holds, for endpoints that do not report it, e.g.
    behind a router. Unset: as reported."""
    fill: float = Field(default=0.95, gt=0.1, le=16.0)
    """Share of the cache that contexts may take at first; preemptions, a queue and prefixes
    computed twice lower it. Above 1 where prompts are cheap, with a `waste` of 1."""
    waste: float = Field(default=0.03, gt=0, le=1)
    """Share of all prompt tokens that may be computed a second time before the share is lowered."""
    min_trajectories: int = Field(default=4, ge=1)
    """Number of trajectories that may always be in flight at an endpoint."""
    interval_s: float = Field(default=2.0, ge=0.05)
    """One worker of the fleet reads an endpoint's metrics at this interval."""
    hold_s: float = Field(default=60.0, gt=0)
    """Time for which a reading counts if none follows; then any number may be in flight."""
    retry_s: float = Field(default=600.0, gt=0)
    """An endpoint without such metrics is asked again after this time."""
    max_wait_s: float = Field(default=1800.0, gt=0)
    """A trajectory that has waited for longer goes ahead uncounted."""
