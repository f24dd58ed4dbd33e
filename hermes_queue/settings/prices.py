"""Prices of slots, by which the cost of an attempt is counted."""

from __future__ import annotations

from pydantic import Field

from hermes_queue.settings.section import PREFIX, Section

_MODAL_GPUS_USD_PER_H = {
    "T4": 0.5904,
    "L4": 0.7992,
    "A10": 1.1016,
    "A10G": 1.1016,
    "L40S": 1.9512,
    "A100": 2.0988,
    "A100-40GB": 2.0988,
    "A100-80GB": 2.4984,
    "H100": 3.9492,
    "H200": 4.5396,
    "B200": 6.2496,
}


class PriceSettings(Section, env_prefix=PREFIX + "PRICES_"):
    """Prices of slots in US dollars, by which the cost of an attempt is counted.

    Modal's are its public ones of 2026-10-08 for sandboxes: of what is reserved, without regions,
    discounts or what is used beyond it. Prices of models: `HERMES_QUEUE_MODEL_PRICES`.
    """

    slot_hour_usd: float = Field(default=0.0, ge=0, le=1e6)
    """Price of one slot for an hour on any backend but Modal, e.g. of its share of a machine."""
    modal_cpu_core_hour_usd: float = Field(default=0.141912, ge=0, le=1e6)
    """Price of a core that a sandbox reserves (0.00003942 a second)."""
    modal_memory_gib_hour_usd: float = Field(default=0.024012, ge=0, le=1e6)
    """Price of a GiB of memory that it reserves (0.00000667 a second)."""
    modal_gpu_hour_usd: dict[str, float] = Field(
        default_factory=lambda: dict(_MODAL_GPUS_USD_PER_H)
    )
    """Prices of GPUs by Modal's name, as JSON; a GPU without a price counts as the dearest one."""

    def modal_usd_per_s(self, *, cpu: float, memory_mb: int, gpu: str | None) -> float:
        """Price of a sandbox per second; `gpu` may end in `:` and a number."""
        per_h = cpu * self.modal_cpu_core_hour_usd
        per_h += memory_mb / 1024 * self.modal_memory_gib_hour_usd
        if gpu:
            per_h += self._gpus_usd_per_h(gpu)
        return per_h / 3600

    def _gpus_usd_per_h(self, gpu: str) -> float:
        name, _, count = gpu.partition(":")
        known = {each.upper(): price for each, price in self.modal_gpu_hour_usd.items()}
        price = known.get(name.strip().upper().rstrip("!"), max(known.values(), default=0.0))
        return price * (int(count) if count.strip().isdigit() else 1)
