"""Slots in containers on the nodes of a Nomad cluster.

Written from the documentation of Nomad's HTTP API (https://developer.hashicorp.com/nomad/api-docs).
"""

from hermes_queue.plugins import Plugin

PLUGIN = Plugin(
    name="nomad",
    purpose="Slots in containers on the nodes of a Nomad cluster.",
    code_lines=1_300,
    needs=("containers", "images"),
    extensions={"backend": {"nomad": "hermes_plugins.nomad.offer:BACKEND"}},
    settings=("hermes_plugins.nomad.settings:NomadSettings",),
)
