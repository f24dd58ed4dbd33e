"""Root file systems as engines take them: with one entry for "/"."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from hermes_plugins.containers.images.archive import _with_root


@pytest.mark.parametrize("names", [["etc", "usr"], ["./etc", "./", "./usr"], ["."]])
async def test_an_archive_reaches_the_engine_with_one_entry_for_its_root(
    names: list[str], tmp_path: Path
) -> None:
    archive = tmp_path / "root.tar"
    with tarfile.open(archive, "w") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.DIRTYPE
            tar.addfile(entry)
    sent = b"".join([chunk async for chunk in _with_root(archive)])
    with tarfile.open(fileobj=io.BytesIO(sent)) as tar:
        found = [entry.name.strip("./") for entry in tar]
    assert found.count("") == 1
    assert sorted(filter(None, found)) == sorted(filter(None, (n.strip("./") for n in names)))
