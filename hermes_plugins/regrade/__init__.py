"""Today's verifier on recorded work: `hermes-queue regrade`."""

from hermes_queue.plugins import Command, Plugin

PLUGIN = Plugin(
    name="regrade",
    purpose="Run today's verifier on recorded patches and answers.",
    code_lines=620,
    commands={
        "regrade": Command(
            "hermes_plugins.regrade.command:regrade",
            "Run today's verifier on recorded patches and answers.",
        ),
    },
)
