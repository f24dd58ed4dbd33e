"""Images as the public software-engineering datasets have them, made of a bundled row.

    python tests/support/swe_images.py BASE.tar OUT      # *.tar and rows.jsonl

Each has the repository in /testbed with its later history, an environment `testbed` in the place of
conda's, and what such images leak: a build, compiled modules, a clone, a newer release, and a wheel
with the fix.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.swe.item import Item
from envs.swe.workspace import Pinned, pin
from hermes_queue.sandbox.base import AssetSpec, SlotSpec
from hermes_queue.sandbox.local.backend import LocalBackend

BUNDLED = Path(__file__).parents[2] / "producers" / "data" / "swe_smith.jsonl"
ROW = "pypi__schedule.15fe9c75.func_op_break_chain__f17dc6aa"
CONDA = "opt/miniconda3/envs/testbed"
ACTIVATE = """if [ "${1-}" = testbed ]; then
  export CONDA_PREFIX=/opt/miniconda3/envs/testbed CONDA_DEFAULT_ENV=testbed
  export PATH=$CONDA_PREFIX/bin:$PATH
fi
"""
GIT_ENV = {
    **{f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
}
NAMES = {
    "bench": "swebench/sweb.eval.x86_64.sched_1776_schedule-1:latest",
    "smith": "swebench/swesmith.x86_64.sched_1776_schedule.15fe9c75:latest",
    "r2e": "namanjain12/schedule_final:15fe9c75",
}
"""Kind of image -> the name under which its rows have it."""


@dataclass(frozen=True)
class Sources:
    """A bundled row with the files of its trees."""

    item: Item
    start: Path
    graded: Path
    fixed: Path
    """The graded tree with the fix."""
    fix: str
    bug: str
    test_patch: str


def git(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        ["git", *words], cwd=cwd, env={**os.environ, **GIT_ENV}, capture_output=True, check=True
    )
    return done.stdout.decode()


def bundled_row(instance_id: str = ROW) -> dict[str, Any]:
    rows = map(json.loads, BUNDLED.read_text().splitlines())
    row: dict[str, Any] = next(row for row in rows if row["instance_id"] == instance_id)
    return row


async def read_sources(place: Path) -> Sources:
    """Fetch the row's sdist and write its trees below `place`."""
    item = Item.model_validate(bundled_row())
    backend = LocalBackend(slots=1)
    await backend.start()

    async def read(asset: AssetSpec, path: str) -> bytes:
        await backend.prepare(SlotSpec(assets=(asset,), python=asset.python))
        return await backend.read_asset(asset, path)

    try:
        pinned: Pinned = await pin(item, read)
    finally:
        await backend.stop()
    repository, solved = pinned.repository, await pinned.solved()
    folders = {"start": pinned.start, "graded": pinned.graded, "fixed": solved}
    for name, tree in folders.items():
        data = await repository.git("archive", "--format=tar", tree)
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            tar.extractall(place / name, filter="data")
    fix = await repository.diff(pinned.start, pinned.fixed)
    bug = await repository.diff(solved, pinned.graded)
    tests = await repository.diff(pinned.start, pinned.graded)
    patches = [each.decode() for each in (fix, bug, tests)]
    return Sources(item, place / "start", place / "graded", place / "fixed", *patches)


def write_root(kind: str, sources: Sources, root: Path) -> None:
    """The files that an image has beside its base."""
    testbed = root / "testbed"
    begin = sources.fixed if kind == "smith" else sources.start
    _write_history(testbed, begin, sources)
    venv = testbed / ".venv" if kind == "r2e" else root / CONDA
    write_environment(venv, sources.item.environment.requirements)
    if kind != "r2e":
        activate = root / "opt/miniconda3/bin/activate"
        activate.parent.mkdir(parents=True)
        activate.write_text(ACTIVATE)
    if kind == "r2e":
        tests = root / "r2e_tests"
        tests.mkdir()
        for number, path in enumerate(sources.item.hidden_files, start=1):
            shutil.copy(sources.graded / path, tests / f"test_{number}.py")
        (testbed / "run_tests.sh").write_text(
            "PYTHONWARNINGS='ignore::UserWarning' .venv/bin/python -W ignore -m pytest "
            "-rA -o addopts= r2e_tests\n"
        )
    _leak(root, testbed, sources)


def _write_history(testbed: Path, begin: Path, sources: Sources) -> None:
    shutil.copytree(begin, testbed)
    git("init", "-q", "-b", "main", cwd=testbed)
    git("add", "-A", "-f", cwd=testbed)
    git("commit", "-q", "-m", "Begin", cwd=testbed)
    git("tag", "v1.2.2", cwd=testbed)
    base = git("rev-parse", "HEAD", cwd=testbed).strip()
    shutil.copytree(sources.fixed, testbed, dirs_exist_ok=True)
    git("add", "-A", "-f", cwd=testbed)
    git("commit", "-q", "--allow-empty", "-m", "Fix it", cwd=testbed)
    git("tag", "v9.9.9", cwd=testbed)
    git("update-ref", "refs/remotes/origin/main", "HEAD", cwd=testbed)
    git("checkout", "-q", base, cwd=testbed)


def write_environment(venv: Path, requirements: Sequence[str]) -> None:
    """Write an environment in which the files of /testbed can be imported."""
    (venv / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (venv / "bin" / name).symlink_to("/usr/bin/python3")
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    site = venv / "lib/python3.11/site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
    pip += ["--python-version", "3.11", "--target", str(site), *requirements]
    subprocess.run(pip, check=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(site)], check=True)
    (site / "__editable__.schedule.pth").write_text("/testbed\n")


def _leak(root: Path, testbed: Path, sources: Sources) -> None:
    """Copies of the fix, where images have them."""
    [edited] = sources.item.edited_files
    fixed = sources.fixed / edited
    for place in (testbed / "build/lib" / edited, root / "opt/copy" / edited):
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(fixed, place)
    other = root / "opt/miniconda3/lib/python3.11/site-packages"
    (other / "schedule-9.9.dist-info").mkdir(parents=True)
    (other / edited).parent.mkdir(exist_ok=True)
    (other / edited).write_text(f"{fixed.read_text()}\n# and more\n")
    cache = testbed / Path(edited).parent / "__pycache__"
    cache.mkdir(exist_ok=True)
    py_compile.compile(str(fixed), cfile=str(cache / f"{fixed.stem}.cpython-311.pyc"))
    clone = root / "opt/clone.git"
    git("clone", "-q", "--bare", testbed, clone, cwd=root)
    git("update-ref", "refs/heads/main", "v9.9.9", cwd=clone)
    wheel = root / "root/.cache/pip/schedule-1.2.2-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(fixed.read_bytes())


def write_image(base: Path, kind: str, sources: Sources, target: Path) -> None:
    """Write an image as the tar of its root file system."""
    root = target.with_suffix(".root")
    write_root(kind, sources, root)
    write_tar(base, root, target)


def write_tar(base: Path, root: Path, target: Path) -> None:
    """Write the base with the files below `root`, which are deleted."""
    with tarfile.open(base) as tar:
        known = {name.removeprefix("./") for name in tar.getnames()}

    def ours(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if entry.name.removeprefix("./") in known:  # engines refuse to see one twice
            return None
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    shutil.copy(base, target)
    with tarfile.open(target, "a") as tar:
        for path in sorted(root.rglob("*")):
            name = f"./{path.relative_to(root)}"
            tar.add(path, arcname=name, filter=ours, recursive=False)
    shutil.rmtree(root)


def rows(sources: Sources) -> dict[str, dict[str, Any]]:
    """The row in each dataset's own columns."""
    item = sources.item
    shared = {"repo": "sched/schedule", "problem_statement": item.problem_statement}
    tests = {"FAIL_TO_PASS": list(item.FAIL_TO_PASS), "PASS_TO_PASS": list(item.PASS_TO_PASS)}
    as_text = {key: json.dumps(value) for key, value in tests.items()}
    bench = {**shared, "base_commit": "0" * 40, "patch": sources.fix, "version": "1.2"}
    bench |= {"test_patch": sources.test_patch, "hints_text": "", **as_text}
    config = {
        "install": "pip install -e .",
        "python": "3.11",
        "log_parser": "parse_log_pytest",
        "test_cmd": "pytest --no-header -rA --tb=line -o addopts= -W ignore::UserWarning",
    }
    return {
        "swe-bench": {"instance_id": "sched__schedule-1", **bench},
        "swe-bench 5": {**bench, "instance_id": "sched__schedule-5", "image": NAMES["bench"]}
        | {"log_parser": "parse_log_pytest", "eval_type": "pass_and_fail"},
        "swe-rebench": {**bench, **tests, "instance_id": "sched__schedule-2"}
        | {"docker_image": NAMES["bench"], "install_config": json.dumps(config)},
        "swe-smith": {**tests, **shared, "repo": "swesmith/sched__schedule.15fe9c75"}
        | {"instance_id": "sched__schedule.15fe9c75.func_x__1", "patch": sources.bug}
        | {"image_name": "swesmith.x86_64.sched__schedule.15fe9c75", "created_at": "2025"},
        "r2e-gym": _r2e_row(sources),
    }


def _r2e_row(sources: Sources) -> dict[str, Any]:
    item = sources.item
    hidden = [test for test in item.test_ids if test.partition("::")[0] in item.hidden_files]
    names = [".".join(test.split("::")[1:]) for test in hidden]
    outcomes = dict.fromkeys(names, "PASSED") | {"TestNever.test_x": "FAILED", "": "ERROR"}
    return {
        "repo_name": "schedule",
        "docker_image": NAMES["r2e"],
        "commit_hash": "15fe9c75",
        "problem_statement": f"[ISSUE]\n{item.problem_statement}\n[/ISSUE]",
        "expected_output_json": json.dumps(outcomes),
        "parsed_commit_content": json.dumps(parsed_commit(sources.fix)),
        "execution_result_content": "{}",
    }


def parsed_commit(patch: str) -> dict[str, Any]:
    """A patch as R2E-Gym has it."""
    signs = {" ": "context", "+": "added", "-": "deleted", "\\": "note"}
    files: list[dict[str, Any]] = []
    for line in patch.splitlines():
        if found := re.fullmatch(r"diff --git a/(\S+) b/\S+", line):
            file = {"path": found[1]}
            files.append({"header": {"file": file, "misc_line": None}, "hunks": []})
        elif line.startswith("--- "):
            files[-1]["minus_file"] = {"path": line[4:]}
        elif line.startswith("+++ "):
            files[-1]["plus_file"] = {"path": line[4:]}
        elif found := re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)", line):
            spans = [
                {"start": int(start), "length": int(length) if length else None}
                for start, length in ((found[1], found[2]), (found[3], found[4]))
            ]
            descriptor = {"old_range": spans[0], "new_range": spans[1], "section": found[5]}
            files[-1]["hunks"].append({"descriptor": descriptor, "line_group": {"all_lines": []}})
        elif files and files[-1]["hunks"]:
            entry = {"content": line[1:], "type": signs[line[:1] or " "]}
            files[-1]["hunks"][-1]["line_group"]["all_lines"].append(entry)
    return {"file_diffs": files, "old_commit_hash": "0", "new_commit_hash": "1"}


def main() -> None:
    base, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    sources = asyncio.run(read_sources(out / "sources"))
    for kind in NAMES:
        write_image(base, kind, sources, out / f"{kind}.tar")
    made = rows(sources)
    (out / "rows.json").write_text(json.dumps(made))


if __name__ == "__main__":
    main()
