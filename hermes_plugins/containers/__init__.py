"""Slots in containers of Docker Engine or Podman; what other hosts of containers need, too."""

from hermes_queue.plugins import Plugin

PLUGIN = Plugin(
    name="containers",
    purpose="Slots in containers of Docker Engine or Podman, with images and services.",
    code_lines=2_670,
    needs=("images",),
    extensions={"backend": {"docker": "hermes_plugins.containers.docker:BACKEND"}},
    settings=("hermes_plugins.containers.settings:DockerSettings",),
)
