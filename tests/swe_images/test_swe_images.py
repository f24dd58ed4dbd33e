"""Rows of public datasets with images, on images that were made like theirs, on a real backend.

`make test-harbor`; HARBOR_SANDBOX names the backend: `local` (default), or `docker`, for which the
tests start a Docker Engine of their own. The images need a Debian mirror and a package index.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import swe_images
from container_engines import docker_engine, engine_directory
from swe_verdicts import (
    SECONDS,
    attempt,
    base_or_skip,
    check_fix_and_nothing,
    import_image,
    verdict,
)

from envs.swe.images.workplace import ImagePlace
from envs.swe_smith import ENV
from hermes_queue.tools import Toolbox, ToolContext

SANDBOX = os.environ.get("HARBOR_SANDBOX", "local")
SHAPES = ("swe-bench", "swe-bench 5", "swe-rebench", "swe-smith", "r2e-gym")
CHEATS = (
    *("fix_from_history", "fix_from_a_copy", "package_reads_the_fix", "installed_pytest_forged"),
    *("interpreter_replaced", "programs_replaced", "shell_replaced", "package_patches_runtest"),
    *("delete_tests", "conftest_forces_passed", "reporter_lies", "workspace_emptied"),
)

pytestmark = [
    pytest.mark.timeout(3 * SECONDS),
    pytest.mark.xdist_group("images of datasets"),
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """The rows, with their images at hand."""
    place = tmp_path_factory.mktemp("images")
    base = base_or_skip()
    sources = asyncio.run(swe_images.read_sources(place / "sources"))
    with contextlib.ExitStack() as stack:
        if SANDBOX == "docker":
            engine = stack.enter_context(docker_engine(stack.enter_context(engine_directory())))
            changed = stack.enter_context(pytest.MonkeyPatch.context())
            changed.setenv("HERMES_QUEUE_DOCKER_HOST", engine.address)
            changed.setenv("DOCKER_HOST", engine.address)
        for kind, name in swe_images.NAMES.items():
            archive = place / f"{kind}.tar"
            swe_images.write_image(base, kind, sources, archive)
            import_image(name, archive, SANDBOX)
        made = swe_images.rows(sources)
        made["swe-bench"]["image"] = swe_images.NAMES["bench"]  # as --images does
        yield made


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_fix_scores_one_and_nothing_zero(
    rows: dict[str, dict[str, Any]], shape: str
) -> None:
    await check_fix_and_nothing(rows[shape], SANDBOX)


@pytest.mark.parametrize("cheat", CHEATS)
async def test_a_cheat_scores_zero(rows: dict[str, dict[str, Any]], cheat: str) -> None:
    found = await verdict(rows["swe-smith"], cheat, SANDBOX)
    assert found.score == 0.0, found.report


async def test_tests_that_the_package_ends_as_expected_failures_have_failed(
    rows: dict[str, dict[str, Any]],
) -> None:
    broken = """
def tag(self, *tags):
    sys.modules["pytest"].xfail("")
import sys
Job.tag = tag
"""
    script = f"printf %s {shlex.quote(broken)} >> schedule/__init__.py"
    found = await verdict(rows["swe-bench"], "oracle", SANDBOX, script)
    assert (found.score, found.report["reason"]) == (0.0, "tests_fail")
    assert found.report["first_failure"] == "xfailed"


async def test_files_that_do_not_count_take_nothing_from_the_fix(
    rows: dict[str, dict[str, Any]],
) -> None:
    script = 'mkdir .tool; python -c \'for i in range(20500): open(f".tool/{i}", "w")\''
    found = await verdict(rows["swe-bench"], "oracle", SANDBOX, script)
    assert (found.score, found.report["dropped_count"]) == (1.0, 20500), found.report


async def test_an_edit_of_a_file_that_the_hidden_tests_change_is_dropped(
    rows: dict[str, dict[str, Any]],
) -> None:
    added = "diff --git a/notes.txt b/notes.txt\nnew file mode 100644\n--- /dev/null\n"
    row = dict(rows["swe-bench"])
    row["test_patch"] += added + "+++ b/notes.txt\n@@ -0,0 +1 @@\n+hidden"  # no end of line
    assert (await verdict(row, "oracle", SANDBOX, "echo x > notes.txt")).score == 1.0


@pytest.mark.parametrize("cheat", ["fix_from_a_copy", "package_reads_the_fix"])
async def test_a_cheat_would_find_what_is_not_concealed(
    rows: dict[str, dict[str, Any]], cheat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill(place: ImagePlace, *given: Any) -> None:
        shown = ImagePlace(place.source, place.facts, ())
        await concealing(shown, *given)

    concealing = ImagePlace.fill
    monkeypatch.setattr(ImagePlace, "fill", fill)
    assert (await verdict(rows["swe-bench"], cheat, SANDBOX)).score == 1.0


async def test_no_slot_holds_the_fix_or_hidden_tests(rows: dict[str, dict[str, Any]]) -> None:
    for shape in ("swe-bench", "swe-smith", "r2e-gym"):
        async with attempt(rows[shape], SANDBOX) as (item, context):
            commits = await context.run("git log --oneline --all --reflog | wc -l")
            assert commits.stdout.strip() == b"1", shape
            [edited] = item.edited_files
            copies = await context.run(f"find / -xdev -path '*/{edited}' ! -path '/proc/*'")
            assert copies.stdout.decode().split() == [f"/testbed/{edited}"], shape
            hidden = "test_schedule.py -o -name r2e_tests -o -path '*/opt/clone.git'"
            left = await context.run(f"find / -xdev -name {hidden} -o -name 'schedule-*.whl'")
            assert not left.stdout, shape


async def test_a_row_is_verified_on_a_host_that_has_not_read_its_image(
    rows: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with attempt(rows["swe-smith"], SANDBOX) as (item, context):
        for call in await ENV.oracle(item, context):
            await Toolbox(ENV.tools, ToolContext(context, 120.0, 16_384)).call(call)
        monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path))
        assert (await ENV.verify(item, context, [])).score == 1.0


@pytest.mark.parametrize(("agent", "score"), [("oracle", "1"), ("nop", "0")])
def test_the_producer_runs_such_rows(
    rows: dict[str, dict[str, Any]], tmp_path: Path, agent: str, score: str
) -> None:
    file = tmp_path / "rows.jsonl"
    chosen = (rows["swe-smith"], rows["r2e-gym"])
    file.write_text("".join(json.dumps(row) + "\n" for row in chosen))
    command = [sys.executable, "-m", "producers.swe_smith", "--dataset", str(file)]
    command += ["--items", "2", "--sandbox", SANDBOX]
    for more in (["--check"], ["--agent", agent, "--expect-score", score]):
        done = subprocess.run(
            [*command, *more], capture_output=True, text=True, cwd=Path(__file__).parents[2]
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
