"""`hermes-queue` with names that are close to commands, and its version."""

from __future__ import annotations

from importlib.metadata import version

from click.testing import CliRunner

import hermes_queue
from hermes_queue.cli import cli


def test_a_mistyped_command_is_answered_with_the_one_that_was_meant() -> None:
    done = CliRunner().invoke(cli, ["stauts"])
    assert done.exit_code == 2
    assert "No such command 'stauts'. Did you mean 'status'?" in done.output


def test_the_version_is_that_of_the_distribution() -> None:
    assert version("hermes-queue") in CliRunner().invoke(cli, ["--version"]).output
    assert hermes_queue.__version__ == version("hermes-queue")
