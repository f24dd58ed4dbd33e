"""A trajectory does not wait for its environment for ever."""

from __future__ import annotations

import secrets
from typing import ClassVar

import pytest
from records import make_job
from slot_bench import local_backend
from sums_env import SumsEnv

from hermes_queue.errors import DeadlineExceeded
from hermes_queue.sandbox.base import AssetSpec, SlotSpec
from hermes_queue.settings import ModelSettings
from workers.attempt import Attempt, Services
from workers.bounds.limits import StageLimits
from workers.draft import Draft
from workers.rollout import rollout


class EndlessEnv(SumsEnv):
    """Its environment takes an hour to build."""

    name: ClassVar[str] = "endless"

    def spec(self, item, profile):
        asset = AssetSpec("text", secrets.token_hex(8), "sleep 3600", "/opt/assets/t")
        return SlotSpec(assets=(asset,))


ENV = EndlessEnv()


async def never() -> None:
    raise AssertionError("nothing was measured")


async def test_an_environment_that_takes_too_long_ends_its_stage_by_deadline():
    row = {"instance_id": "i", "question": "1+1", "answer": 2}
    draft = Draft(make_job(env=f"{__name__}:ENV", agent={"kind": "nop"}), attempt=1, epoch=1)
    draft.clock.total_s = 600.0
    async with local_backend() as backend:
        services = Services(backend, ModelSettings(), bounds=StageLimits(prepare_s=0.1))
        with pytest.raises(DeadlineExceeded, match="prepare took longer") as caught:
            await rollout(Attempt(draft=draft, row=row, services=services, on_measured=never))
        assert backend.free_slots == 1
    assert caught.value.stage == "prepare"
