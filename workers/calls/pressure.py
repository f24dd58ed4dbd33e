"""What an engine's metrics say, and how much of its KV cache contexts may take.

The metrics come from outside: they are read within limits, and what they say can neither lift the
limit at once nor keep more than a few trajectories from running.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, replace

from hermes_queue.settings import EngineSettings

METRICS_MAX_BYTES = 4 << 20
"""Largest page of metrics; vLLM's has about 100 KB."""
SAMPLES_MAX = 2000
"""Samples of ours on a page; vLLM and SGLang have some for each replica."""
COUNT_MAX = 1 << 53
KV_MIN, KV_MAX = 1024, 1 << 31
"""Tokens of a cache that can be believed."""

_DECAY = 0.9
"""Weight of earlier readings against one more."""
_LOWER, _RAISE, _RAISE_BEYOND = 0.99, 1.005, 1.001
"""Factors of the level for each reading; the last one beyond the level of the settings."""
_LEVELS = (0.5, 2.0)
"""Bounds of the level. Contexts that share a prefix share its blocks: their sum may exceed the
cache."""
_STEP_DOWN, _STEP_UP = 0.8, 1.25
"""Most that the size of a cache may change from one reading to the next."""
_QUEUED = 4

_NAMES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "usage",
    "vllm:gpu_cache_usage_perc": "usage",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prefix_cache_queries_total": "queries",
    "vllm:prefix_cache_hits_total": "hits",
    "vllm:generation_tokens_total": "generated",
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:token_usage": "usage",
    "sglang:num_retracted_reqs_total": "preemptions",
    "sglang:max_total_num_tokens": "kv_tokens",
    "sglang:prompt_tokens_total": "queries",
    "sglang:cached_tokens_total": "hits",
    "sglang:generation_tokens_total": "generated",
}
_CONFIG = "vllm:cache_config_info"
_SAMPLE = re.compile(
    rf"^({'|'.join(map(re.escape, (*_NAMES, _CONFIG)))})(?:\{{(.{{0,4000}})\}})? +(\S{{1,40}})",
    re.MULTILINE,
)
_LABEL = re.compile(r'(?<!\w)([a-zA-Z_]\w{0,99})="([^"\\]{0,200})"')


@dataclass(frozen=True, slots=True)
class Reading:
    """What an engine reports; None = nothing. Counters count from the engine's start."""

    kv_tokens: int | None = None
    """Tokens that the cache holds."""
    running: int | None = None
    waiting: int | None = None
    usage: float | None = None
    """Share of the cache that running requests use."""
    preemptions: int | None = None
    queries: int | None = None
    """Tokens of all prompts."""
    hits: int | None = None
    """Those of them that were in the cache."""
    generated: int | None = None


def read_metrics(page: bytes) -> Reading:
    """What a page in Prometheus' text format says; unreadable parts are left out. Blocks."""
    sums: dict[str, float] = {}
    by_rank: dict[tuple[str, str], float] = {}
    blocks: dict[str, int] = {}
    text = page[:METRICS_MAX_BYTES].decode(errors="replace")
    for count, found in enumerate(_SAMPLE.finditer(text)):
        if count >= SAMPLES_MAX:
            break
        name, labels = found[1], dict(_LABEL.findall(found[2] or ""))
        replica = labels.get("engine") or labels.get("dp_rank") or ""
        if name == _CONFIG:
            blocks[replica] = _tokens(labels)
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        if not math.isfinite(value) or not 0 <= value <= COUNT_MAX:
            continue
        # The ranks of one replica report the same thing; models and cache sources add up.
        field = _NAMES[name]
        rank = labels.get("tp_rank", ""), labels.get("pp_rank", "")
        key = f"{field}|{replica}", "|".join(rank)
        by_rank[key] = by_rank.get(key, 0.0) + value
    replicas: dict[str, float] = {}
    for (place, _), value in by_rank.items():
        replicas[place] = max(replicas.get(place, 0.0), value)
    for place, value in replicas.items():
        field = place.partition("|")[0]
        if field == "usage":
            sums[field] = max(sums.get(field, 0.0), min(value, 1.0))
        else:
            sums[field] = sums.get(field, 0.0) + value
    kv = sum(blocks.values()) or int(sums.get("kv_tokens", 0))
    counts = {
        field: int(sums[field])
        for field in ("running", "waiting", "preemptions", "queries", "hits", "generated")
        if field in sums
    }
    return Reading(kv if KV_MIN <= kv <= KV_MAX else None, usage=sums.get("usage"), **counts)


def _tokens(labels: dict[str, str]) -> int:
    """Tokens of a cache of vLLM, of its size in blocks."""
    sizes = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    if not all(size.isdecimal() and size.isascii() and len(size) < 12 for size in sizes):
        return 0
    return int(sizes[0]) * int(sizes[1])


@dataclass(frozen=True, slots=True)
class Pressure:
    """What one reader leaves to the next: how full the cache may be, and why."""

    kv_tokens: int
    level: float
    """Share of it that contexts may take."""
    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    preemptions: int | None = None
    queries: int | None = None
    hits: int | None = None
    generated: int | None = None
    grown: int = 0
    bound: int = 0
    asked: float = 0.0
    """Tokens of recent prompts."""
    missed: float = 0.0
    """Those of them that were not in the cache."""
    fresh: float = 0.0
    """Tokens by which contexts have grown meanwhile, without those that the engine generated, which
    are in its cache."""

    @property
    def waste(self) -> float:
        """Share of recent prompt tokens that were computed although they had been before."""
        return max(0.0, self.missed - self.fresh) / self.asked if self.asked else 0.0

    def packed(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def unpacked(cls, memo: str) -> Pressure | None:
        """The inverse; None if there is nothing, or that of another version."""
        try:
            return cls(**json.loads(memo))
        except (ValueError, TypeError):
            return None


def steered(
    last: Pressure | None, reading: Reading, grown: int, bound: int, settings: EngineSettings
) -> Pressure | None:
    """The pressure after one more reading; None if the size of the cache is unknown.

    Contexts have grown by `grown` tokens so far, and `bound` times somebody had to wait.
    Preemptions, a queue and prompts that are computed again because their prefix was evicted lower
    the level. Without them it rises while somebody waits.
    """
    kv = settings.kv_tokens or reading.kv_tokens
    if kv is None:
        return None
    if last is None:
        last = Pressure(kv, settings.fill)
    elif not settings.kv_tokens:
        kv = round(min(max(kv, last.kv_tokens * _STEP_DOWN), last.kv_tokens * _STEP_UP))
    running, waiting = reading.running or 0, reading.waiting or 0
    queries, hits = _since(last.queries, reading.queries), _since(last.hits, reading.hits)
    generated = _since(last.generated, reading.generated)
    now = replace(
        Pressure(kv, last.level, running, waiting, reading.usage or 0.0, grown=grown, bound=bound),
        preemptions=reading.preemptions,
        queries=reading.queries,
        hits=reading.hits,
        generated=reading.generated,
        asked=_DECAY * last.asked + queries,
        missed=_DECAY * last.missed + max(0, queries - hits),
        fresh=_DECAY * last.fresh + max(0, grown - last.grown - generated),
    )
    waste = now.waste if reading.hits is not None else 0.0
    is_pressed = _since(last.preemptions, reading.preemptions) > 0
    is_pressed |= waiting > max(_QUEUED, running // 4) or waste > settings.waste
    level = last.level
    if is_pressed:
        level *= _LOWER
    elif bound > last.bound and waste < settings.waste / 2:
        level *= _RAISE if level < settings.fill else _RAISE_BEYOND
    return replace(
        now, level=min(max(level, _LEVELS[0] * settings.fill), max(_LEVELS[1], settings.fill))
    )


def _since(last: int | None, now: int | None) -> int:
    """How much a counter has grown; 0 if the engine was restarted or says nothing."""
    return 0 if last is None or now is None else max(0, now - last)
