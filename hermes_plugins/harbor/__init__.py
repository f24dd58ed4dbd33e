"""Tasks in the Harbor format: env, producer, bundled tasks, and their validation.

compose/     services beside a task's box
endless/     tasks of endless-terminals, as Harbor tasks
grading/     the reward of what the agent left
shapes/      the shapes of task folders; terminal-bench 1 as Harbor tasks
sources/     where tasks come from
steps/       tasks of several instructions
validation/  `tasks validate`: attempts, verdicts, file
"""

from hermes_queue.plugins import Command, Plugin

PLUGIN = Plugin(
    name="harbor",
    purpose="Tasks in the Harbor format: env, producer, validation.",
    code_lines=6_400,
    needs=("images", "play"),
    extensions={
        "env": {"harbor": "hermes_plugins.harbor.env:ENV"},
        "producer": {"harbor": "hermes_plugins.harbor.producer:PRODUCER"},
    },
    commands={
        "tasks validate": Command(
            "hermes_plugins.harbor.validate:validate",
            "Find out which tasks in the Harbor format can be trusted here.",
        ),
    },
    settings=("hermes_plugins.harbor.settings:HarborSettings",),
)
