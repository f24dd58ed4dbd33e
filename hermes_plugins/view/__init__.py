"""The viewer of trajectories: `hermes-queue view`, `show` and `export --format html`.

Records are hostile: a model and the programs that it ran have written them. Nothing here validates
them, and no shape of a record may raise an error where it is listed or shown.
"""

from hermes_queue.plugins import Command, Plugin

PLUGIN = Plugin(
    name="view",
    purpose="Look at runs, groups and trajectories: in a browser, in a terminal, in one HTML file.",
    code_lines=9_500,
    commands={
        "export html": Command(
            "hermes_plugins.view.export_page:export_page",
            "Write trajectories as one HTML file, which opens without a server.",
        ),
        "show": Command(
            "hermes_plugins.view.show:show",
            "Show one trajectory, or a group with its samples side by side, in this terminal.",
        ),
        "view": Command(
            "hermes_plugins.view.command:view",
            "Serve pages about runs, groups and trajectories to a browser.",
        ),
    },
    settings=("hermes_plugins.view.settings:ViewSettings",),
    run_hints=("hermes_plugins.view.command:hint",),
)
