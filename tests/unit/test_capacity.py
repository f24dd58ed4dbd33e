"""Slots of a backend may become more and fewer while they are leased."""

from __future__ import annotations

import asyncio

import pytest

from hermes_queue.broker.pool import TaskPool
from hermes_queue.sandbox.capacity import Capacity


async def takers(capacity, count):
    """So many tasks that each want a place, after those that can have one have it."""
    tasks = [asyncio.create_task(capacity.acquire()) for _ in range(count)]
    await settle()
    return tasks


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def served(tasks):
    return sum(task.done() for task in tasks)


async def test_more_slots_serve_who_waits_at_once():
    capacity = Capacity(1)
    tasks = await takers(capacity, 4)
    assert served(tasks) == 1
    capacity.resize(3)
    await settle()
    assert (served(tasks), capacity.free) == (3, 0)
    capacity.release()
    await settle()
    assert served(tasks) == 4


@pytest.mark.parametrize("leased_before", [0, 1, 2, 4])
async def test_fewer_slots_hold_once_those_beyond_are_released(leased_before):
    capacity = Capacity(4)
    first = await takers(capacity, leased_before)
    capacity.resize(2)
    for _ in first:
        capacity.release()
    tasks = await takers(capacity, 4)
    assert (served(tasks), capacity.free) == (2, 0)
    for task in tasks:
        task.cancel()


async def test_shrinking_and_growing_again_loses_no_place():
    capacity = Capacity(4)
    first = await takers(capacity, 3)
    capacity.resize(1)
    capacity.resize(5)
    more = await takers(capacity, 4)
    assert served(first) + served(more) == 5
    for task in more:
        task.cancel()


@pytest.mark.parametrize(
    ("settings", "jobs_at_once"),
    [
        ({}, 3),
        ({"HERMES_QUEUE_LOCAL_SLOTS": "2"}, 2),
        ({"HERMES_QUEUE_LOCAL_SLOTS": "5"}, 3),
        ({"HERMES_QUEUE_LOCAL_SLOTS": "2", "HERMES_QUEUE_SANDBOX_BACKEND": "modal"}, 3),
    ],
)
def test_a_worker_takes_no_more_jobs_than_local_slots(settings, jobs_at_once, monkeypatch) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert TaskPool(limit=3).num_processes == jobs_at_once
