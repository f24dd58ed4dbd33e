"""What our backends do beyond the contract: outputs by name; what a slot does not even see."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.rights
async def test_a_command_can_open_its_output_by_name(bench):
    slot = await bench.slot()
    result = await bench.sh(slot, "echo out >/dev/stdout && echo err >/dev/stderr")
    assert result.ok is bench.candidate.named_streams
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n") or not result.ok


@pytest.fixture
async def local(make_bench):
    return await make_bench("local", slots=2)


async def test_names_of_another_slots_files_and_processes_are_out_of_sight(local):
    one, other = await local.slot(), await local.slot()
    await local.out(one, "sleep 4242 & touch /tmp/x")
    assert await local.out(other, "find /tmp -mindepth 1") == ""
    assert await local.out(other, "pgrep -fc '[s]leep 4242' || true") == "0"


async def test_names_of_the_workers_files_are_out_of_sight(local, tmp_path):
    (tmp_path / "secret").write_text("hunter2")
    slot = await local.slot()
    for path in (tmp_path / "secret", __file__, "/etc/shadow", Path.home() / ".ssh", "/root"):
        assert not (await local.sh(slot, f"[ -e '{path}' ]")).ok, path


@pytest.mark.rights
async def test_the_hosts_python_packages_are_out_of_sight(local):
    slot = await local.slot()
    found = await local.out(
        slot,
        "find / \\( -name site-packages -o -name dist-packages -o -name python-wheels \\) "
        "-not -path '/proc/*' 2>/dev/null | while read d; do ls -A \"$d\"; done",
    )
    assert found == ""
