"""A check that no other distribution overwrites our packages.

The distributions `envs` and `workers` exist on PyPI. Installing one of them beside hermes-queue
overwrites our files without a warning, so workers and producers check at their start.
"""

from __future__ import annotations

import re
from importlib.metadata import distributions

from hermes_queue.errors import ConfigurationError

OWN_PACKAGES = ("hermes_queue", "workers", "producers", "envs")
_OWN_DISTRIBUTION = "hermes-queue"


def check_installation() -> None:
    """Raise ConfigurationError if another distribution owns one of our top-level packages."""
    # `packages_distributions` of `importlib.metadata` makes a path of every file, and `metadata`
    # parses a mail: either for all distributions takes longer than the rest of a worker's start.
    for distribution in distributions():
        files = "\n" + (distribution.read_text("RECORD") or "")
        names = (distribution.read_text("top_level.txt") or "").split()
        for package in OWN_PACKAGES:
            if package in names or f"\n{package}/" in files or f"\n{package}.py," in files:
                owner = str(distribution.metadata["Name"])
                if re.sub(r"[-_.]+", "-", owner).lower() != _OWN_DISTRIBUTION:
                    raise ConfigurationError(
                        f"the distribution {owner!r} also installs the package {package!r} and may "
                        f"have overwritten ours; run: pip uninstall -y {owner} && "
                        "pip install --force-reinstall hermes-queue"
                    )
