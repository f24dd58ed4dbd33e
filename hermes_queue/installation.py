"""Our packages, and not others of the same names: overwritten by pip, or in the working directory.

The distributions `envs` and `workers` exist on PyPI. Installing one of them beside hermes-queue
overwrites our files without a warning, so workers and producers check at their start.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from importlib.util import module_from_spec
from pathlib import Path

from hermes_queue.errors import ConfigurationError

OWN_PACKAGES = ("hermes_queue", "workers", "producers", "envs", "hermes_plugins")
_OWN_DISTRIBUTION = "hermes-queue"

_ROOT = Path(__file__).parents[1]


def find_own_packages() -> None:
    """Import our packages from where this one is, whatever else has their names.

    The working directory is often searched first, and `envs`, `workers` and `producers` are names
    that other repositories use, too. For processes that are ours alone: in others, such as a
    trainer's, these names may be somebody else's.

    Raises:
        ConfigurationError: another package of such a name is loaded already.
    """
    for name in OWN_PACKAGES:
        loaded = sys.modules.get(name)
        if loaded is None:
            spec = PathFinder.find_spec(name, [str(_ROOT)])
            if spec and spec.loader:
                loaded = sys.modules[name] = module_from_spec(spec)
                spec.loader.exec_module(loaded)
        elif str(_ROOT / name) not in map(os.path.realpath, loaded.__path__):
            raise ConfigurationError(
                f"the package {name!r} was imported from {list(loaded.__path__)[:1]}, which is "
                "not ours: leave that directory, or its place in PYTHONPATH"
            )


def shadows(directory: Path) -> list[Path]:
    """What hides our packages from `python -m` and scripts that are run in `directory`."""
    if directory.resolve() == _ROOT:
        return []
    found = (
        path
        for name in OWN_PACKAGES
        for path in (directory / name / "__init__.py", directory / f"{name}.py")
    )
    return [path for path in found if path.is_file()]


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
