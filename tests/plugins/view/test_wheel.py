"""The viewer as users install it: its pages, licences, and the extra that it needs."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.request
import zipfile
from pathlib import Path
from runpy import run_path

import pytest
from records import make_job, make_record
from source_trees import ROOT
from wheel import build_wheel, with_extra

PAGES_MOST_BYTES = 256 << 10
VENDORED_MOST_BYTES = 48 << 10


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


def test_wheel_has_the_pages_as_they_were_published_and_checked(built: Path) -> None:
    static = "hermes_plugins/view/static/"
    with zipfile.ZipFile(built) as archive:
        sizes = {each.filename: each.file_size for each in archive.infolist()}
        pages = {name for name in sizes if name.startswith(static)}
        assert {"LICENSE.preact", "LICENSE.htm"} <= {Path(name).name for name in pages}
        for name in pages:
            assert archive.read(name) == (ROOT / name).read_bytes(), name
        stated = archive.read(f"{static}vendor/README.md").decode()
        for name in sorted(name for name in pages if "/vendor/" in name):
            if name.endswith(("preact.js", "htm.js", "LICENSE.preact", "LICENSE.htm")):
                digest = hashlib.sha512(archive.read(name)).hexdigest()
                assert f"{digest}  {Path(name).name}" in stated, name
    assert sum(sizes[name] for name in pages) < PAGES_MOST_BYTES
    assert sum(sizes[name] for name in pages if "/vendor/" in name) < VENDORED_MOST_BYTES


def test_the_wheel_has_the_licences_of_the_libraries_in_its_pages(built: Path) -> None:
    with zipfile.ZipFile(built) as archive:
        [stated] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(stated).decode().splitlines()
    [licences] = [line for line in lines if line.startswith("License-Expression: ")]
    files = [line.split(": ")[1] for line in lines if line.startswith("License-File: ")]
    readme = (ROOT / "hermes_plugins/view/static/vendor/README.md").read_text()
    components = run_path(str(ROOT / "deploy/sbom_vendored.py"))["vendored"](readme)
    assert {each["purl"] for each in components} == {"pkg:npm/preact@11.2.0", "pkg:npm/htm@3.1.1"}
    for each in components:
        assert each["licenses"][0]["license"]["id"] in licences.split()
        assert f"hermes_plugins/view/static/vendor/LICENSE.{each['name']}" in files


def test_the_wheel_with_the_extra_view_alone_shows_a_file(built: Path, tmp_path: Path) -> None:
    record = make_record(make_job())
    (tmp_path / "out.jsonl").write_text(record.to_json() + "\n")
    start = with_extra("view", built, tmp_path / "unpacked")
    with start("view", str(tmp_path / "out.jsonl"), "--port", "0") as viewer:
        try:
            address, _, token = viewer.stdout.readline().strip().partition("/#token=")
            assert address, viewer.stderr.read()
            url = f"{address}/api/t/{record.trajectory_id}"
            asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(asked) as answer:
                assert json.load(answer)["row"]["id"] == record.trajectory_id
            with urllib.request.urlopen(address) as page:
                script = re.search(r'src="(/static/[^"]+/main.js)"', page.read().decode())
            assert script
            with urllib.request.urlopen(f"{address}{script[1]}") as served:
                assert len(served.read()) > 1000
        finally:
            viewer.terminate()
        assert viewer.wait(30) == 0
