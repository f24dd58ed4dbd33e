"""Subcommands of `hermes-queue`, one group per file."""
