"""Adapters of the queue's feeds to trainers. Importing a module loads no trainer."""

from hermes_queue.plugins import Plugin

PLUGIN = Plugin(
    name="trainers",
    purpose="Adapters of TRL, Tinker, slime, verl, SkyRL, AReaL and prime-rl.",
    code_lines=1_180,
    settings=("hermes_plugins.trainers.settings:TrainerSettings",),
)
