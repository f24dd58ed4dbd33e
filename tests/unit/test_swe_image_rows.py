"""Rows of public datasets whose environment is an image."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import pytest
from pydantic import ValidationError
from sample_package import bug_patch, fix_patch, make_row
from swe_images import parsed_commit

from envs.swe.cheats import tamper
from envs.swe.grading.findings import Findings, Step
from envs.swe.grading.grader import Grader
from envs.swe.grading.plants import View
from envs.swe.grading.slot import session
from envs.swe.grading.suite import SuiteRun
from envs.swe.images import r2e
from envs.swe.images.commands import parse_command
from envs.swe.images.names import check_template, image_of
from envs.swe.images.slot import conceal
from envs.swe.images.source import ImageSource
from envs.swe.item import Item
from envs.swe_smith import ENV
from hermes_queue.errors import SandboxRejected
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.image_slots import refuse_beside_image
from producers.swe_smith import PRODUCER, SweSmithOptions

if TYPE_CHECKING:
    from envs.swe.workspace import Pinned
    from hermes_queue.sandbox.context import SlotContext

NO_PIN = SimpleNamespace(image=None)
BENCH = make_row(patch=fix_patch(), environment=None, test_patch="", version="1.0")
COMMAND = "pytest --no-header -rA --tb=line --color=no -p no:cacheprovider -W ignore::UserWarning"
REBENCH = {
    **BENCH,
    "docker_image": "swerebench/sweb.eval.x86_64.someone_1776_sample-1",
    "install_config": json.dumps({"test_cmd": COMMAND, "log_parser": "parse_log_pytest"}),
}
R2E = {
    "repo_name": "sample",
    "docker_image": "namanjain12/sample_final:0123456789abcdef",
    "commit_hash": "0123456789abcdef",
    "problem_statement": "[ISSUE]\nclamp is wrong\n[/ISSUE]",
    "expected_output_json": json.dumps(
        {"\u001b[1mTestA.test_clamp[a b]\u001b[0m": "PASSED", "test_b": "FAILED", "": "ERROR"}
    ),
    "parsed_commit_content": json.dumps(parsed_commit(fix_patch())),
    "execution_result_content": "large",
}


def source(row: dict[str, Any]) -> ImageSource:
    found = Item.model_validate(row).source
    assert isinstance(found, ImageSource)
    return found


def refusal(row: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        Item.model_validate(row)
    return str(caught.value)


def test_a_row_that_names_an_image_runs_in_it() -> None:
    found = source({**BENCH, "image": "ghcr.io/org/eval:1"})
    assert (found.reference, found.workdir, found.patch) == (
        "ghcr.io/org/eval:1",
        "/testbed",
        "fix",
    )


@pytest.mark.parametrize("own", [{"environment": {"pytest_args": ["-x"]}}, {"source": {}}])
def test_a_row_with_an_environment_or_source_of_its_own_does_not(own: dict[str, Any]) -> None:
    row = {**BENCH, "image_name": "x/y", "source": {"type": "git"}} | own
    assert Item.model_validate(row).source.type == "git"


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ("swesmith.x86_64.Org__Lib.01234567", "swebench/swesmith.x86_64.org_1776_lib.01234567"),
        ("jyangballin/swesmith.x86_64.a__b.0", "jyangballin/swesmith.x86_64.a_1776_b.0"),
        ("swebench/swesmith.x86_64.a_1776_b.0", "swebench/swesmith.x86_64.a_1776_b.0"),
    ],
)
def test_an_image_of_swe_smith_holds_the_clean_repository(stated: str, name: str) -> None:
    row = {**BENCH, "patch": bug_patch(), "image_name": stated, "base_commit": "1" * 40}
    assert (source(row).reference, source(row).patch) == (name, "bug")
    assert Item.model_validate(row).base_commit is None


def test_names_that_a_dataset_does_not_state_are_made_of_the_id() -> None:
    made = [image_of("Django__Django-1", check_template(name)) for name in ("swe-bench", "swe-gym")]
    assert made == [
        "swebench/sweb.eval.x86_64.django_1776_django-1:latest",
        "xingyaoww/sweb.eval.x86_64.django_s_django-1:latest",
    ]
    assert image_of("A__b-1", check_template("r/{id}:1")) == "r/a__b-1:1"
    for wrong in ("swe-bnech", "r/{name}", "r/{"):
        with pytest.raises(ValueError, match="template"):
            check_template(wrong)


def test_the_producers_flags_choose_the_image() -> None:
    named = {**BENCH, "image_name": "org/x:1"}
    prepare = PRODUCER.prepare
    template = check_template("swe-bench")
    assert source(prepare(BENCH, SweSmithOptions(images=template))).reference.endswith(
        "sample_1776_1:latest"
    )
    assert source(prepare(named, SweSmithOptions(images=template))).reference == "org/x:1"
    for options in (SweSmithOptions(no_images=True), SweSmithOptions(repo_base_url="https://h/x")):
        assert Item.model_validate(prepare(named, options)).source.type == "git"
    assert "source" not in prepare(BENCH, SweSmithOptions())


def test_the_settings_of_swe_rebench_are_those_of_its_test_command() -> None:
    item = Item.model_validate(REBENCH)
    assert item.environment.pytest_args == ("-p", "no:cacheprovider", "-W", "ignore::UserWarning")
    second = {**REBENCH, "image_name": REBENCH["docker_image"], "docker_image": None}
    assert source(second).workdir == "/sample"


def test_a_test_command_keeps_what_decides_outcomes() -> None:
    found = parse_command(
        "source /x/activate testbed && conda activate testbed\nexport A=1\n"
        "PATH=/y B='2 3' python3.9 -W error -m pytest -rA -q -n4 --maxfail=1 -k 'not slow' tests\n"
    )
    assert found.env == {"A": "1", "B": "2 3", "PYTHONWARNINGS": "error"}
    assert found.arguments == ("-k", "not slow")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tox -e py39",
        "./tests/run.py x",
        "pytest a | tee b",
        "pytest a; pytest b",
        "python x",
    ],
)
def test_other_test_commands_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"pytest|programs|tests"):
        parse_command(text)


def test_a_statement_of_blanks_is_read_at_once() -> None:
    assert r2e.statement(f"[ISSUE]a{' ' * 300_000}b[/ISSUE]\n").endswith("b")


def test_a_row_of_r2e_gym_becomes_one_of_ours() -> None:
    item = Item.model_validate(R2E)
    assert item.instance_id == "sample__0123456789abcdef"
    assert item.problem_statement == "clamp is wrong"
    assert item.FAIL_TO_PASS == ("r2e_tests::TestA::test_clamp[a b]",)
    assert item.edited_files == ("sample/core.py",)
    assert source(R2E).tests == "/r2e_tests"
    assert not {"parsed_commit_content", "execution_result_content"} & item.model_dump().keys()


def test_the_gold_patch_of_r2e_gym_is_the_commits() -> None:
    assert r2e.gold_patch(json.dumps(parsed_commit(fix_patch()))) == fix_patch()
    with_tests = parsed_commit(fix_patch().replace("sample/core.py", "tests/test_core.py"))
    assert r2e.gold_patch(json.dumps(with_tests)) == ""


def test_an_item_with_an_image_survives_its_way_through_a_job() -> None:
    for row in (R2E, REBENCH, {**BENCH, "image": "x/y:1"}):
        item = Item.model_validate(row)
        assert Item.model_validate(item.model_dump(mode="json")) == item


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**BENCH, "image": "x", "FAIL_TO_PASS": ["test_a"]}, "not the id of a test of pytest"),
        ({**BENCH, "image": "x", "PASS_TO_PASS": ["test_a"]}, "Django and SymPy"),
        ({**BENCH, "image": "x", "log_parser": "parse_log_jest"}, "log_parser: 'parse_log_jest'"),
        ({**REBENCH, "install_config": "{"}, "install_config is not JSON"),
        ({**REBENCH, "install_config": '{"log_parser": "gotest"}'}, "install_config.log_parser"),
        ({**REBENCH, "install_config": '{"test_cmd": "tox"}'}, "install_config.test_cmd"),
        ({**R2E, "expected_output_json": "[]"}, "expected_output_json"),
        ({**R2E, "expected_output_json": '{"test_a (b.C)": "PASSED"}'}, "other test runners"),
        ({**R2E, "expected_output_json": '{"test_a": "FAILED"}'}, "no test that passes"),
        ({**R2E, "parsed_commit_content": '{"file_diffs": 3}'}, "parsed_commit_content"),
        ({**R2E, "parsed_commit_content": "[" * 100_000}, "parsed_commit_content"),
    ],
)
def test_a_row_that_cannot_be_graded_is_refused_by_its_column(
    row: dict[str, Any], said: str
) -> None:
    assert said in refusal(row)


@pytest.mark.parametrize(
    "changes",
    [
        {"source": {"type": "image", "reference": "x", "workdir": "/a/../b"}},
        {"source": {"type": "image", "reference": "x", "workdir": "/tmp/x"}},
        {"source": {"type": "image", "reference": "x", "workdir": "/a:b"}},
        {"source": {"type": "image", "reference": "x", "workdir": "/a\0b"}},
        {"source": {"type": "image", "reference": "--x"}},
        {"source": {"type": "image", "reference": "x y"}},
        {"source": {"type": "image", "reference": "x", "python": "python"}},
        {"source": {"type": "image"}},
        {"source": {"type": "image", "reference": "x"}, "environment": {"python": "3.11"}},
        {"source": {"type": "image", "reference": "x"}, "environment": {"install": ["a"]}},
    ],
)
def test_what_an_image_decides_cannot_be_in_the_row(changes: dict[str, Any]) -> None:
    assert refusal({**BENCH, **changes})


def test_the_slot_has_the_image_and_its_environment_first() -> None:
    item = Item.model_validate({**BENCH, "image": "x/y:1"})
    spec = ENV.spec(item, "default")
    assert spec.image == ImageSpec(reference="x/y:1")
    assert spec.python is None
    assert not spec.assets
    assert not spec.conceal
    places = dict(spec.env)["PATH"].split(":")
    assert places.index("/opt/miniconda3/envs/testbed/bin") < places.index("/usr/bin")
    refuse_beside_image(spec, conceals=False)


@pytest.mark.parametrize("changes", [{"python": "3.9"}, {"conceal": ("sample",)}])
def test_a_slot_with_an_image_has_no_other_python_and_hides_nothing(
    changes: dict[str, Any],
) -> None:
    refuse_beside_image(SlotSpec(**changes), conceals=False)
    with pytest.raises(SandboxRejected, match="image"):
        refuse_beside_image(SlotSpec(image=ImageSpec("x"), **changes), conceals=False)


def test_the_task_names_the_images_repository_and_no_test() -> None:
    text = ENV.task(Item.model_validate({**BENCH, "image": "x/y:1"}))
    assert "/testbed" in text
    assert "/workspace" not in text
    assert "test_clamp" not in text


def test_rows_with_an_image_have_cheats_of_their_own() -> None:
    without = tamper.cases(Item.model_validate(BENCH))
    cases = tamper.cases(Item.model_validate({**BENCH, "image": "x/y:1"}))
    assert {
        "fix_from_history",
        "fix_from_a_copy",
        "shell_replaced",
    } <= cases.keys() - without.keys()
    assert "hidden_tests_emptied" in tamper.cases(Item.model_validate(R2E))


# --- outcomes -----------------------------------------------------------------------------------

RUN = SuiteRun({}, {}, True, False, 0, 1.0, "")
STEP = Step("all", View({}, frozenset()), ("t.py",), ("t.py::a", "t.py::b[x"))


def failing(may_xfail: frozenset[str] = frozenset(), **outcomes: str) -> dict[str, str]:
    run = replace(RUN, outcomes={f"t.py::{name}": how for name, how in outcomes.items()})
    return Findings.of(replace(STEP, may_xfail=may_xfail), run).failing


def test_a_test_that_fails_as_expected_passes_only_where_the_dataset_says_so() -> None:
    outcomes = {"a": "xfailed", "b[x y]": "passed"}
    assert failing(**outcomes) == {"t.py::a": "xfailed"}
    assert not failing(frozenset(["t.py::a"]), **outcomes)


class OneControl(Grader):
    """A grader whose runs of the known fix all end like `control`."""

    def __init__(self, item: Item, **control: str) -> None:
        super().__init__(cast("SlotContext", None), item, cast("Pinned", NO_PIN))
        self.control = outcomes_of(control)
        self.controls = 0

    async def _expect_control(self, step: Step) -> SuiteRun:
        self.controls += 1
        return replace(RUN, outcomes=self.control)

    async def excused(self, **outcomes: str) -> frozenset[str]:
        """The tests that may fail as expected in a run with these outcomes."""
        step = replace(STEP, may_xfail=frozenset(STEP.test_ids))
        run = replace(RUN, outcomes=outcomes_of(outcomes))
        return (await self._excusing(step, run)).may_xfail


def outcomes_of(named: dict[str, str]) -> dict[str, str]:
    return {f"t.py::{name}": how for name, how in named.items()}


async def test_a_test_fails_as_expected_only_if_it_does_with_the_known_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path))
    item = Item.model_validate({**BENCH, "image": "x/y:1"})
    grader = OneControl(item, **{"a": "xfailed", "b[x y]": "passed"})
    for _ in range(2):
        both = {"a": "xfailed", "b[x y]": "xfailed"}
        assert await grader.excused(**both) == {"t.py::a"}
    controls = grader.controls
    assert await grader.excused(**{"a": "xfailed", "b[x y]": "passed"}) == {"t.py::a"}
    assert grader.controls == controls  # which it remembers


def test_ids_of_old_pytests_are_those_of_new_ones() -> None:
    read, write = os.pipe()
    reporter = session.Reporter(write, ["t.py::T::test_a"])
    report = SimpleNamespace(nodeid="t.py::T::()::test_a[1]", when="call", passed=True)
    report.failed = report.skipped = False
    reporter.pytest_runtest_logreport(report)
    with os.fdopen(read) as lines:
        assert json.loads(lines.readline())["id"] == "t.py::T::test_a[1]"
    config, items = Mock(), [SimpleNamespace(nodeid="t.py::T::()::test_a[1]")]
    reporter.pytest_collection_modifyitems(config, items)
    assert len(items) == 1
    reporter._pipe.close()


def test_an_id_that_was_cut_at_a_blank_stands_for_all_that_begin_like_it() -> None:
    assert not failing(**{"a": "passed", "b[x y]": "passed", "b[x z]": "passed"})
    assert failing(**{"a": "passed", "b[x y]": "passed", "b[x z]": "failed"}) == {
        "t.py::b[x": "failed"
    }
    assert failing(**{"a": "passed", "b[y]": "passed"}) == {"t.py::b[x": "missing"}


# --- scripts that run in slots ------------------------------------------------------------------


@pytest.mark.parametrize("package", ["envs.swe.grading.slot", "envs.swe.images.slot"])
def test_scripts_for_slots_are_python_3_5(package: str) -> None:
    scripts = [path for path in files(package).iterdir() if path.name.endswith(".py")]
    for path in scripts:
        nodes = ast.walk(ast.parse(path.read_text(), feature_version=(3, 5)))
        assert not any(isinstance(node, ast.JoinedStr) for node in nodes)  # which ast lets pass
        assert "from __future__ import annotations" not in path.read_text()
    assert len(scripts) > 1


def test_copies_of_the_fix_are_found_by_name_and_content(tmp_path: Path) -> None:
    for name, text in (("core.py", "fixed\n"), ("other.py", "fixed\n"), ("p/core.py", "old\n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "__pycache__").mkdir()
    for name in ("__pycache__/core.cpython-39.pyc", "core.pyc", "my_lib-1.0.whl", "my.whl"):
        (tmp_path / name).touch()
    blob = conceal.blob_id(str(tmp_path / "core.py"))
    job = {"workdir": "/testbed", "copies": {"core.py": [blob]}, "package": "My.Lib", "edited": {}}
    search = conceal.Search(job)
    names = [path.name for path in tmp_path.iterdir()]
    found = {Path(path).relative_to(tmp_path) for path in search.folder(str(tmp_path), names)}
    expected = ("core.py", "core.pyc", "__pycache__/core.cpython-39.pyc", "my_lib-1.0.whl")
    assert found == set(map(Path, expected))
    assert not list(search.folder(str(tmp_path / "p"), ["core.py"]))


def test_another_release_of_the_package_is_found_and_the_same_one_is_not(tmp_path: Path) -> None:
    def installed(place: str, text: str, metadata: str = "My_Lib-2.0.dist-info") -> None:
        package = tmp_path / place / "my_lib"
        package.mkdir(parents=True)
        (package / "core.py").write_text(text)
        (tmp_path / place / metadata).mkdir()

    installed("newer", "fixed otherwise\n")
    installed("same", "old\n")
    installed("of-another", "fixed otherwise\n", "my_lib_extra-2.0.dist-info")
    installed("editable", "")
    (tmp_path / "editable/my_lib/core.py").unlink()
    installed("my_lib-2.0-py3.9.egg", "fixed otherwise\n", "EGG-INFO")
    installed("testbed/build", "fixed otherwise\n")
    (tmp_path / "linked/my_lib-1.dist-info").mkdir(parents=True)
    (tmp_path / "linked/my_lib").symlink_to(tmp_path / "testbed/build/my_lib")
    before = conceal.blob_id(str(tmp_path / "same/my_lib/core.py"))
    job = {
        "workdir": str(tmp_path / "testbed"),
        "copies": {},
        "package": "my-lib",
        "edited": {"src/my_lib/core.py": before, "docs/x.rst": "0" * 40},
    }
    search = conceal.Search(job)
    found = {
        str(Path(path).relative_to(tmp_path))
        for folder, folders, names in os.walk(tmp_path)
        for path in search.installed(folder, [*folders, *names])
    }
    assert found == {"newer/my_lib", "newer/My_Lib-2.0.dist-info", "my_lib-2.0-py3.9.egg"}


def test_a_git_directory_that_git_cannot_read_may_hold_copies(tmp_path: Path) -> None:
    job = {"workdir": "/testbed", "copies": {"a.py": ["0" * 40]}, "package": "", "edited": {}}
    search = conceal.Search(job)
    repository = tmp_path / "x.git"
    subprocess.run(["git", "init", "-q", "--bare", str(repository)], check=True)
    assert not search.holds_copies(str(repository))
    (repository / "HEAD").write_text("?")
    assert search.holds_copies(str(repository))


def read_repository(workdir: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    script = files("envs.swe.images.slot").joinpath("read.sh").read_text()
    scratch.mkdir(exist_ok=True)
    given = {"WORKDIR": str(workdir), "SCRATCH": str(scratch), "TESTS": "", "NEEDED": "pytest"}
    given["ATTRIBUTES"] = "* -text"
    return subprocess.run(
        ["bash", "-c", script],
        env={**given, "PYTHONS": "/nonexistent/python:python", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_repository_of_an_image_is_read_as_its_files_are(tmp_path: Path) -> None:
    workdir, scratch = tmp_path / "repo", tmp_path / "scratch"
    workdir.mkdir()
    (workdir / "a.py").write_text("committed\n")
    identity = ["-c", "user.name=x", "-c", "user.email=x"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "v1"]):
        subprocess.run(["git", "-C", str(workdir), *identity, *words], check=True)
    (workdir / "a.py").write_text("changed\n")
    (workdir / "built.so").touch()
    done = read_repository(workdir, scratch)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = dict(line.split("=", 1) for line in done.stdout.splitlines())
    shown = subprocess.run(
        ["git", "-C", str(workdir), "show", f"{answers['commit']}:a.py"], capture_output=True
    )
    assert shown.stdout == b"changed\n"
    assert answers["tag"] == "v1"
    assert set((scratch / "files").read_bytes().split(b"\0")) == {b"./a.py", b"./built.so", b""}
    assert (scratch / "pack").stat().st_size


def test_an_image_without_a_repository_is_refused_with_the_field(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for workdir in (tmp_path / "plain", tmp_path / "missing"):
        done = read_repository(workdir, tmp_path / "scratch")
        assert done.returncode == 3
        assert done.stdout.startswith("refused=source.workdir: ")
