"""Slots with an image of their own, for the backends `local` and `modal`, without an engine.

cli/         `hermes-queue images`
containers/  commands in a container that is a slot, whoever runs it
dockerfile/  Dockerfiles: read, evaluated, rewritten
fetch/       images from registries and archives
inside/      the program that works on an image's files
modal/       slots at Modal: one sandbox each, whose root file system is the image's
rootfs/      slots of this host: layers, isolation, users

A task's image is planned (`plan.py`), fetched or built layer by layer (`build.py`, `layers.py`),
and kept by name (`names.py`, `store.py`). `hermes_queue.images.spec` describes one in a `SlotSpec`.
"""

from hermes_queue.plugins import Command, Plugin

PLUGIN = Plugin(
    name="images",
    purpose="Slots with images, and images of tasks on this host, without a container engine.",
    code_lines=6_790,
    image_slots={
        "local": "hermes_plugins.images.rootfs.offer:BACKEND",
        "modal": "hermes_plugins.images.modal.offer:BACKEND",
    },
    commands={
        "images": Command(
            "hermes_plugins.images.cli.command:images",
            "Pull, build, import and prune the images of tasks on this host.",
        ),
    },
    settings=("hermes_plugins.images.settings:ImageSettings",),
)
