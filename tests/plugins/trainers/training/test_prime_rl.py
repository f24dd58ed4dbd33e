"""Rows in prime-rl's own packer: needs a checkout, whose `src` PRIME_RL_SRC names."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer_groups import CASES, FIT

from hermes_plugins.trainers import prime_rl, versions

SOURCE = os.environ.get("PRIME_RL_SRC")
pytestmark = [
    pytest.mark.skipif(not SOURCE, reason="PRIME_RL_SRC names no checkout"),
    pytest.mark.filterwarnings("ignore"),  # of prime-rl
]


@pytest.fixture(autouse=True)
def source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SOURCE))
    tested = versions.TRAINERS["prime_rl"]
    assert versions.missing(tested) == []


@pytest.mark.parametrize("name", FIT)
def test_its_packer_and_transport_keep_every_trained_token(tmp_path: Path, name: str) -> None:
    group: Any = CASES[name].group
    given = SimpleNamespace(
        run_dir=tmp_path, seq_len=64, ranks=2, pad_to=8, temperature=1.0, advantage="mean"
    )
    prime_rl._Orchestrator(SimpleNamespace(), given)._write(1, [group])
    rollouts = importlib.import_module("prime_rl.transports.rollouts")
    batches = [
        batch
        for rank in range(2)
        for batch in rollouts.FileSystemMicroBatchReceiver(tmp_path, rank, 1).receive()
    ]
    found = sorted(
        row
        for batch in batches
        for row in zip(
            batch.input_ids,
            batch.inference_logprobs,
            batch.advantages,
            batch.loss_mask,
            strict=True,
        )
        if row[-1]
    )
    rows = prime_rl.rows_of(group, advantage="mean")
    expected = sorted(
        (each[0], each[1], row.advantage, True)
        for row in rows
        for each in zip(row.ids, row.logprobs, row.mask, strict=True)
        if each[2]
    )
    assert found == expected
