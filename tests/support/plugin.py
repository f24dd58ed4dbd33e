"""A plugin as an installer leaves it: modules and metadata in a directory on `sys.path`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes_queue import extensions, plugins

Install = Callable[[str, Mapping[str, str], Mapping[str, Mapping[str, str]]], None]
"""Installs a distribution: its name, file name -> source, and the extensions that it declares."""


def install(site: Path, name: str, modules: Mapping[str, str], target: str) -> None:
    """Put a distribution into `site`, which is or will be on `sys.path`.

    Args:
        site: the directory.
        name: of the distribution.
        modules: file name -> source.
        target: `module:ATTRIBUTE` of its `Plugin`, for its entry point; "" = it has none.
    """
    for file, source in modules.items():
        (site / file).write_text(source, encoding="utf-8")
    metadata = site / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{plugins.GROUP}]", f"{name} = {target}"] if target else []
    (metadata / "entry_points.txt").write_text("\n".join([*lines, ""]))
    _forget()


def declaration(name: str, given: Mapping[str, Mapping[str, str]]) -> str:
    """Source of a module whose `PLUGIN` declares these extensions, by kind and name."""
    return (
        "from hermes_queue.plugins import Plugin\n"
        f"PLUGIN = Plugin(name={name!r}, purpose='A test.', extensions={dict(given)!r})\n"
    )


@contextmanager
def installing(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Yields what installs plugins into `site` until the end of the block."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(site)
    _forget()

    def put(name: str, modules: Mapping[str, str], given: Mapping[str, Mapping[str, str]]) -> None:
        module = f"{name.replace('-', '_')}_declaration"
        files = {**modules, f"{module}.py": declaration(name, given)}
        install(site, name, files if given else modules, f"{module}:PLUGIN" if given else "")

    yield put
    _forget()
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(site):
            del sys.modules[name]


def _forget() -> None:
    for cached in (plugins.installed, extensions.own, extensions._load_named):
        cached.cache_clear()
