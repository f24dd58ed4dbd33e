"""A check that no other distribution overwrites our packages.

The distributions `envs` and `workers` exist on PyPI. Installing one of them beside hermes-queue
overwrites our files without a warning, so workers and producers check at their start.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import distributions

from hermes_queue.errors import ConfigurationError

OWN_PACKAGES = ("hermes_queue", "workers", "producers", "envs")
_OWN_DISTRIBUTION = "hermes-queue"


def check_installation() -> None:
    """Raise ConfigurationError if another distribution owns one of our top-level packages."""
    # To read what all distributions have installed takes as long as the rest of a worker's start,
    # so places without such a package are left out. `packages_distributions` would also make a path
    # of every file, and `metadata` parse a mail.
    places = [place for place in sys.path if _has_one_of_ours(place)]
    for distribution in distributions(path=places):
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


def _has_one_of_ours(place: str) -> bool:
    """Whether modules that are imported from `place` have one of our names."""
    names = (name for package in OWN_PACKAGES for name in (package, f"{package}.py"))
    return any(os.path.exists(os.path.join(place, name)) for name in names)
