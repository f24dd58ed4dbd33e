"""Every backend passes the checks of `hermes-queue sandboxes check`, and ours a few more."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_queue.sandbox.selfcheck import CHECKS, NotApplicable, Subject
from hermes_queue.sandbox.selfcheck.processes import COUNT

ALIKE = frozenset(
    """
    death_by_a_signal_is_reported_as_a_shell_does a_sigkill_of_its_own_is_a_result
    stdin_and_output_are_bytes a_command_without_stdin_reads_an_empty_one
    invalid_utf8_is_kept_and_shown_replaced long_output_keeps_head_and_tail
    a_command_line_may_hold_any_text_and_a_megabyte_of_it output_that_just_fits_is_whole
    cwd_and_environment_are_the_requests the_workers_environment_does_not_reach_commands
    fifty_commands_run_at_once a_timeout_is_reported_with_the_output_so_far
    cancellation_kills_the_whole_tree acquire_waits_for_a_free_slot
    a_cancelled_acquire_takes_no_slot resize_changes_how_many_slots_may_be_leased
    connections_are_bounded_and_slow_readers_wait a_port_ends_with_its_owner_and_with_the_slot
    releasing_twice_frees_one_slot a_released_slot_is_lost_in_place
    a_profile_nobody_described_is_refused_with_those_there_are a_file_over_the_limit_is_refused
    an_asset_is_built_once_by_five_at_once a_build_is_strict_and_starts_in_its_mount
    a_build_that_takes_too_long_is_ended a_malformed_asset_is_the_envs_fault
    a_python_that_is_not_to_be_had_names_the_fix
    """.split()
)
"""Checks whose result does not depend on whether the worker is root."""


def marked(check):
    return pytest.param(
        check, id=check.name, marks=() if check.name in ALIKE else pytest.mark.rights
    )


def test_checks_that_do_not_depend_on_rights_exist():
    assert {check.name for check in CHECKS} >= ALIKE


@pytest.mark.parametrize("check", [marked(check) for check in CHECKS])
async def test_every_backend_passes(check, backend_name, configure):
    candidate = configure(backend_name)
    try:
        await check.run(Subject(candidate.name, candidate.memory_mb))
    except NotApplicable:
        if check.image == "image":  # a subject with an image is a candidate of `make test-images`
            return
        of_snapshots = check.body.__module__.endswith(".snapshots")
        assert of_snapshots or check.isolated
        assert not (candidate.keeps_snapshots if of_snapshots else candidate.isolated)


# --- beyond the contract ------------------------------------------------------------------


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
    assert await local.out(other, COUNT) == "0"


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
