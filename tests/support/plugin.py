"""A plugin as an installer leaves it: a module and its metadata in a directory on `sys.path`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(
    site: Path, name: str, modules: Mapping[str, str], entry_points: Mapping[str, str]
) -> None:
    """Put a distribution into `site`.

    Args:
        site: is or will be on `sys.path`.
        name: of the distribution.
        modules: file name -> source.
        entry_points: "group name" -> "module:attribute", e.g. "hermes_queue.envs mine" -> "a:ENV".
    """
    for file, source in modules.items():
        (site / file).write_text(source, encoding="utf-8")
    metadata = site / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for key, target in entry_points.items():
        group, _, short = key.partition(" ")
        lines += [f"[{group}]", f"{short} = {target}"]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
