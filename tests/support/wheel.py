"""Our wheel, freshly built, and its commands where only one extra is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from subprocess import PIPE, Popen

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from source_trees import ROOT

ALONE = """
import importlib.abc, sys
allowed = set(sys.argv.pop(1).split(","))

class Others(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top[0] != "_" and top not in allowed and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Others())
from hermes_queue.cli import main
main()
"""


def build_wheel(out: Path) -> Path:
    """Build it into this directory."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    [path] = out.glob("*.whl")
    return path


def distributions_of(extra: str, ours: metadata.Distribution) -> set[str]:
    """Names of all distributions that are installed with this extra and nothing else."""
    found: set[str] = set()
    waiting = [(Requirement(f"hermes-queue[{extra}]"), ours.requires or [])]
    while waiting:
        wanted, asked = waiting.pop()
        found.add(canonicalize_name(wanted.name))
        for each in map(Requirement, asked):
            with_it = [{"extra": name} for name in ("", *wanted.extras)]
            needed = each.marker is None or any(map(each.marker.evaluate, with_it))
            if needed and (each.extras or canonicalize_name(each.name) not in found):
                waiting.append((each, metadata.requires(each.name) or []))
    return found


def with_extra(extra: str, wheel: Path, unpacked: Path) -> Callable[..., Popen[str]]:
    """Starts `hermes-queue` of the wheel where nothing but this extra is installed."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked, [n for n in archive.namelist() if n.startswith("hermes_")])
    [installed] = metadata.distributions(path=[str(unpacked)])
    ours = distributions_of(extra, installed)
    files = [file for name in ours - {"hermes-queue"} for file in metadata.files(name) or []]
    modules = {file.parts[0].removesuffix(".py") for file in files if file.suffix == ".py"}
    assert {"pydantic", "redis"} <= modules
    assert not {"celery", "kombu", "modal", "openai", "tokenizers", "pyarrow"} & modules
    names = ",".join({*modules, "hermes_queue", "hermes_plugins"})

    def start(*words: str) -> Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(unpacked)}
        return Popen(
            [sys.executable, "-c", ALONE, names, *words],
            cwd=unpacked,
            env={**environment, "HERMES_QUEUE_PATHS_CACHE": str(unpacked / "cache")},
            stdout=PIPE,
            stderr=PIPE,
            text=True,
        )

    return start
