"""Every backend passes the checks of `hermes-queue sandboxes check`."""

from __future__ import annotations

import pytest

from hermes_plugins.selfcheck.bench import NotApplicable, Subject
from hermes_plugins.selfcheck.checks import CHECKS

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
