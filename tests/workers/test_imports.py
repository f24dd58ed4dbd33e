"""Which modules a job may have a worker import, and what the import may cost."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest
from records import make_job

from hermes_queue.errors import EnvBug, EnvInfraError
from workers import imports
from workers.imports import import_named, may_import


@pytest.mark.parametrize(
    ("module", "allowed", "may"),
    [
        ("mypkg.tasks", "*", True),
        ("mypkg.tasks", "mypkg", True),
        ("mypkg", "other, mypkg", True),
        ("mypkg.tasks", "mypkg.tasks", True),
        ("mypkg2", "mypkg", False),
        ("mypkg", "mypkg.tasks", False),
        ("mypkg", "", False),
        ("envs.gsm8k", "", True),
        ("hermes_queue.agent.kinds.nop", "", True),
        ("os", "*", False),
        ("unittest.__main__", "*", False),
        ("antigravity", "*,antigravity", False),
        ("mypkg.__main__", "*", False),
    ],
)
def test_an_operator_says_which_modules_jobs_may_name(module: str, allowed: str, may: bool) -> None:
    assert may_import(module, allowed) is may


@pytest.mark.parametrize(
    "fields",
    [
        {"env": "other:ENV"},
        {"agent": {"kind": "other:Agent"}},
        {"agent": {"kind": "nop", "params": {"parser": "other:PARSER"}}},
        {"agent": {"kind": "openai", "params": {"server": "other:SERVER"}}},
    ],
    ids=["env", "agent", "parser", "token server"],
)
async def test_every_name_of_a_job_is_asked_about(fields: dict[str, object]) -> None:
    with pytest.raises(EnvBug, match=r"'other'.*HERMES_QUEUE_WORKER_IMPORTS"):
        await import_named(make_job(**fields), allowed="mypkg")


async def test_an_import_that_does_not_end_blocks_neither_the_loop_nor_a_second_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "never_imported.py").write_text("import sys\nsys.never_imported_gate.wait()\n")
    gate = threading.Event()
    monkeypatch.setattr(sys, "never_imported_gate", gate, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(imports, "IMPORT_S", 0.05)
    job = make_job(env="never_imported:ENV")
    try:
        for _ in range(2):
            with pytest.raises(EnvInfraError, match="importing never_imported takes longer"):
                await import_named(job, allowed="*")
        threads = [each for each in threading.enumerate() if each.name == "import-never_imported"]
        assert len(threads) == 1
    finally:
        gate.set()
    monkeypatch.setattr(imports, "IMPORT_S", 60.0)
    await import_named(job, allowed="*")
    await asyncio.to_thread(threads[0].join)
    assert "never_imported" in sys.modules
    del sys.modules["never_imported"]
