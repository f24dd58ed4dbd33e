"""Refuse to start where another distribution owns one of our package names.

The distributions `envs` and `workers` exist on PyPI. Installing one of them next to
us overwrites files of ours without a warning, so worker and producer look once.
"""

from __future__ import annotations

import re
from importlib.metadata import packages_distributions

from hermes_queue.errors import ConfigurationError

OWN_PACKAGES = ("hermes_queue", "workers", "producers", "envs")
_OWN_DISTRIBUTION = "hermes-queue"


def check_installation() -> None:
    """Make sure that our top-level packages belong to nobody else.

    Raises:
        ConfigurationError: names the foreign distribution and how to get rid of it.
    """
    owners = packages_distributions()
    for package in OWN_PACKAGES:
        for owner in owners.get(package, ()):
            if re.sub(r"[-_.]+", "-", owner).lower() != _OWN_DISTRIBUTION:
                raise ConfigurationError(
                    f"the distribution {owner!r} also installs the package {package!r} and may "
                    f"have overwritten ours; run: pip uninstall -y {owner} && "
                    "pip install --force-reinstall hermes-queue"
                )
