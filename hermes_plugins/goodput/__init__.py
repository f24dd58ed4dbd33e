"""Reports of what slots and money bring: `hermes-queue goodput` and `report`.

The accounts that they read are the ledger's (`hermes_queue.ledger.accounts`).
"""

from hermes_queue.plugins import Command, Plugin

PLUGIN = Plugin(
    name="goodput",
    purpose="Report what slots and money brought, and where the rest went.",
    code_lines=590,
    commands={
        "goodput": Command(
            "hermes_plugins.goodput.command:goodput",
            "Show scored trajectories per slot-hour and dollar, and where other time went.",
        ),
        "report": Command(
            "hermes_plugins.goodput.report:report",
            "Report on a run, in the terminal or as one HTML file with plots.",
        ),
    },
)
