"""An Atropos API server for trainers, whose batches come from the results stream."""

from hermes_queue.plugins import Command, Plugin

PLUGIN = Plugin(
    name="atropos_server",
    purpose="Hand out finished groups to a trainer that speaks the Atropos API.",
    code_lines=1_060,
    commands={
        "atropos-server": Command(
            "hermes_plugins.atropos_server.command:atropos_server",
            "Hand out finished groups to a trainer that speaks the Atropos API.",
        ),
    },
)
