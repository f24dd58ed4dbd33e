"""`hermes-queue mix`: many sources, one producer that keeps the backlog between two marks."""

from hermes_queue.plugins import Command, Plugin

PLUGIN = Plugin(
    name="mix",
    purpose="Enqueue rows of many sources by weights.",
    code_lines=2_000,
    commands={
        "mix": Command(
            "hermes_plugins.mix.command:mix",
            "Enqueue rows of many sources by weights; change them, show them.",
        ),
    },
    keys=("hermes_plugins.mix.keys:KEYS",),
    exported=("hermes_plugins.mix.measured:read_mixes",),
)
