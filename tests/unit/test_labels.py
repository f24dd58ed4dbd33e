"""What a job is called where people look."""

from __future__ import annotations

from hermes_queue.ledger.answers import DueJob


def test_a_label_is_env_instance_and_sample() -> None:
    assert DueJob("r.0a1b.3", 1, "train", 5, "envs.gsm8k", "ferry").label == "gsm8k:ferry#3"


def test_a_long_instance_id_keeps_its_ends_so_that_the_sample_is_seen() -> None:
    instance = "pypi__schema.e86cc08e.func_op_swap__x1y2z3"
    label = DueJob("r.0a1b.41", 1, "train", 5, "envs.swe_smith", instance).label
    assert label == "swe_smith:pypi__schema..._swap__x1y2z3#41"
    assert len(label) <= 42
