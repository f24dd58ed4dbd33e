"""Tasks in the Harbor format: validation before anybody trains on them.

validate.py  `tasks validate`
validation/  its attempts, verdicts and file
"""

from hermes_queue.plugins import Command, Plugin

PLUGIN = Plugin(
    name="harbor",
    purpose="Tasks in the Harbor format.",
    code_lines=620,
    needs=("play",),
    commands={
        "tasks validate": Command(
            "hermes_plugins.harbor.validate:validate",
            "Find out which tasks in the Harbor format can be trusted here.",
        ),
    },
)
