"""The checks that every sandbox backend passes: `hermes-queue sandboxes check NAME`."""

from hermes_queue.plugins import Command, Plugin

PLUGIN = Plugin(
    name="selfcheck",
    purpose="Checks whether a sandbox backend keeps its contract.",
    code_lines=1_330,
    commands={
        "sandboxes check": Command(
            "hermes_plugins.selfcheck.command:check",
            "Check that a backend keeps its contract.",
        ),
    },
)
