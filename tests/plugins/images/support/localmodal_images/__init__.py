"""Images that localmodal really builds or fetches, and sandboxes with their root file system.

builds.py     recipes become layers, through the host's store of images
enclosure.py  a sandbox whose root is an image
mounts.py     images mounted in running sandboxes
"""

from __future__ import annotations

from localmodal_images.builds import ImageBuilds
from localmodal_images.enclosure import RootedEnclosure
from localmodal_images.mounts import mount, mount_files, unmount

__all__ = ["ImageBuilds", "RootedEnclosure", "mount", "mount_files", "unmount"]
