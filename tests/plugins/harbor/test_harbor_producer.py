"""Rows of Harbor tasks: where they come from, what is completed, and what is skipped or refused."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from harbor_tasks import IMAGE, write_task
from source_trees import ROOT

from hermes_plugins.harbor import cache, tree
from hermes_plugins.harbor.env import ENV
from hermes_plugins.harbor.producer import PRODUCER
from hermes_plugins.harbor.sources import base_image
from hermes_plugins.harbor.task import TaskFolder
from hermes_plugins.images.base_image import BaseImage, can_stand_for
from hermes_plugins.images.permission import full_name
from hermes_plugins.images.plan import plan
from hermes_plugins.images.store import cannot_be_had
from hermes_queue.errors import ConfigurationError, InputError
from producers.run.options import ProducerOptions, parse
from producers.run.plan import make_plan
from producers.run.selection import SelectedItems, select


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path / "cache"))


def options(*flags: object) -> ProducerOptions:
    return parse(PRODUCER, ["--items", "all", *map(str, flags)])


def chosen(dataset: object, *flags: object) -> SelectedItems:
    given = options("--dataset", dataset, *flags)
    return select(PRODUCER, ENV, PRODUCER.dataset_of(given.rows.dataset), given)


def only(dataset: object, *flags: object) -> dict[str, Any]:
    [item] = chosen(dataset, *flags).items
    return item.item()


def rows(path: Path, *found: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def test_a_folder_of_tasks_is_a_dataset(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    write_task(tmp_path / "tasks" / "more" / "two")
    items = [each.item() for each in chosen(tmp_path / "tasks").items]
    assert [item["instance_id"] for item in items] == ["more/two", "one"]
    assert items[1]["task"] == str(tmp_path / "tasks" / "one")
    assert items[1]["digest"] == tree.digest(tmp_path / "tasks" / "one")


def test_a_folder_without_tasks_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no folder with a task\.toml"):
        chosen(tmp_path)


def test_a_folder_of_packed_tasks_says_which_archives_to_unpack(tmp_path: Path) -> None:
    for name in ("one", "two", "three", "four"):
        shutil.make_archive(str(tmp_path / "dev" / name), "zip", write_task(tmp_path / "t" / name))
    found = r"dev: .*; first unpack what is in four\.zip, one\.zip, three\.zip, \.\.\. \(4\)"
    with pytest.raises(InputError, match=found):
        chosen(tmp_path / "dev")
    with pytest.raises(InputError, match=r"one\.zip: is an archive: unpack it"):
        chosen(tmp_path / "dev" / "one.zip")


def test_tasks_travel_in_their_jobs_on_request(tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    row = only(task, "--embed")
    assert row == only(task, "--embed")
    folder = cache.unpack(row["task"]["archive"], tmp_path / "unpacked")
    assert tree.digest(folder) == row["digest"]


def test_a_registry_names_folders_at_commits(tmp_path: Path) -> None:
    task = {"name": "a", "git_url": "https://h/r.git", "git_commit_id": "1" * 40, "path": "t/a"}
    content = [{"name": "tb", "version": "2.0", "tasks": [task]}, {"name": "other", "tasks": []}]
    path = tmp_path / "registry.json"
    path.write_text(json.dumps(content))
    dataset = PRODUCER.dataset_of(f"{path}#tb@2.0")
    [row] = dataset.rows()
    assert row.data["task"] == {"git_url": "https://h/r.git", "commit": "1" * 40, "path": "t/a"}
    with pytest.raises(InputError, match=r"no dataset 'x'; name one of other, tb@2\.0"):
        list(PRODUCER.dataset_of(f"{path}#x").rows())


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        ([{"name": "tb", "version": "2.0", "tasks": []}], "tb@7", "no dataset 'tb@7'.* tb@2"),
        ({"a": 1}, "tb", "is no registry"),
        ([{"name": "tb", "tasks": None}, 5], "tb", "is no registry"),
    ],
)
def test_a_registry_without_the_named_version_is_refused(
    tmp_path: Path, content: object, name: str, said: str
) -> None:
    (tmp_path / "registry.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=said):
        list(PRODUCER.dataset_of(f"{tmp_path / 'registry.json'}#{name}").rows())


def test_a_row_without_a_task_is_named_with_what_rows_have(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"r\.jsonl:1: has no task.*`task_binary`.*has path, x"):
        chosen(rows(tmp_path / "r.jsonl", {"path": "a", "x": 1}))


def test_each_bad_folder_of_a_dataset_is_skipped_and_named(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "a-broken", config="[agent")
    write_task(tmp_path / "tasks" / "b-imageless", config="[agent]\ntimeout_sec = 1\n")
    write_task(tmp_path / "tasks" / "c-good")
    write_task(tmp_path / "tasks" / "d-testless", test=None)
    found = chosen(tmp_path / "tasks", "--items", "all")
    assert [item.instance_id for item in found.items] == ["c-good"]
    lines = "\n".join(found.skip_lines())
    for name, why in (
        ("a-broken", "is not TOML"),
        ("b-imageless", "names no image"),
        ("d-testless", "nothing could grade the task"),
    ):
        assert re.search(rf"tasks/{name}\): .*{why}", lines), lines


def test_a_broken_task_does_not_keep_another_one_from_being_chosen_by_name(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "broken", config="[agent")
    write_task(tmp_path / "tasks" / "good")
    [item] = chosen(tmp_path / "tasks", "--instance-id", "good").items
    assert item.instance_id == "good"
    with pytest.raises(InputError, match=r"no row is left .*broken.*is not TOML"):
        chosen(tmp_path / "tasks", "--instance-id", "broken")


def test_a_compose_file_is_no_reason_to_leave_a_task_out_where_yaml_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks" / "good")
    files = {"environment/docker-compose.yaml": "services: {db: {image: x}}"}
    write_task(tmp_path / "tasks" / "two", **files)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InputError, match=r"two: docker-compose.yaml: needs PyYAML"):
        chosen(tmp_path / "tasks")


def test_rows_may_hold_a_task_as_an_archive(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(write_task(tmp_path / "t"), arcname="t")
    binary = base64.b64encode(buffer.getvalue()).decode()
    path = rows(tmp_path / "r.jsonl", {"path": "tasks/t-1", "task_binary": binary})
    row = only(path)
    assert (row["instance_id"], row["digest"]) == ("t-1", tree.digest(tmp_path / "t"))


def test_rows_may_hold_a_task_in_columns(tmp_path: Path) -> None:
    tests = write_task(tmp_path / "t", tests__data_dot_txt="42") / "tests"
    (tests / "test.sh").unlink()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(tests, arcname="tests")
    row = {
        "task_name": "fix-git",
        "instruction": "Fix it.",
        "docker_image": "a/b:1",
        "environment_tar": "",
        "tests_tar": base64.b64encode(buffer.getvalue()).decode(),
        "test_sh": "echo 1 >/logs/verifier/reward.txt",
    }
    item = only(rows(tmp_path / "r.jsonl", row))
    task = TaskFolder.read(cache.unpack(item["task"]["archive"], tmp_path / "unpacked"))
    assert (task.instruction, task.environment.docker_image) == ("Fix it.", "a/b:1")
    assert sorted(path.name for path in task.tests.iterdir()) == ["data.txt", "test.sh"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"task_binary": "%%%", "path": "a"}, "task_binary: is not base64"),
        ({"task_binary": "aGVsbG8=", "path": "a"}, "cannot be unpacked"),
        ({"task_name": "a", "instruction": "", "docker_image": "b"}, "must not be empty"),
        ({"instance_id": "a", "task": "relative"}, "must be an absolute path"),
        ({"instance_id": "a", "task": {"git_url": "u", "commit": "main"}}, "task"),
        ({"instance_id": "a", "task": "/absent"}, "/absent: cannot be read"),
    ],
)
def test_a_damaged_row_is_refused_before_anything_is_enqueued(
    tmp_path: Path, row: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        chosen(rows(tmp_path / "r.jsonl", row))


def test_a_task_that_lacks_something_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="names no image"):
        chosen(write_task(tmp_path / "t", config=""))


def test_tasks_that_nothing_here_can_run_are_skipped_and_counted(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "good")
    write_task(tmp_path / "tasks" / "gpu", config=IMAGE + "gpus = 1")
    selection = chosen(tmp_path / "tasks")
    assert [item.instance_id for item in selection.items] == ["good"]
    [line] = selection.skip_lines()
    assert line.startswith(f"skipped 1 rows ({tmp_path}/tasks/gpu): ")
    assert "GPU" in line


def test_only_valid_tasks_of_a_validation_are_run_in_their_mode(tmp_path: Path) -> None:
    verdicts = {"a": "valid", "b": "forgeable", "c": "no_oracle", "d": None}
    lines = []
    for name, verdict in verdicts.items():
        digest = tree.digest(write_task(tmp_path / "tasks" / name, README=name))
        if verdict:
            lines.append({"digest": digest, "verdict": verdict, "mode": "restart"})
    file = rows(tmp_path / "validated.jsonl", *lines)
    selection = chosen(tmp_path / "tasks", "--validated", file)
    assert [item.item()["grading"] for item in selection.items] == ["restart"]
    assert selection.skipped["forgeable (--validated)"] == 1
    assert selection.skipped["not in the file of --validated"] == 1
    more = chosen(tmp_path / "tasks", "--validated", file, "--allow-no-oracle")
    assert [item.instance_id for item in more.items] == ["a", "c"]


def test_a_broken_validation_is_refused_with_its_line(tmp_path: Path) -> None:
    file = rows(tmp_path / "v.jsonl", {"digest": "1", "verdict": "valid", "mode": "odd"})
    with pytest.raises(InputError, match=r"v\.jsonl:1: .*mode 'odd'"):
        chosen(write_task(tmp_path / "t"), "--validated", file)


def test_a_tasks_own_limits_are_its_jobs_limits(tmp_path: Path) -> None:
    text = IMAGE + "[agent]\ntimeout_sec = 3600\n[verifier]\ntimeout_sec = 1000"
    task = write_task(tmp_path / "t", config=text)

    def limits(*flags: object) -> Any:
        given = options("--dataset", task, *flags)
        plan = make_plan(PRODUCER, ENV, given)
        selection = select(PRODUCER, ENV, PRODUCER.dataset_of(str(task)), given)
        [job] = plan.jobs(selection, lambda _: True)
        return job.limits

    found = limits("--agent", "nop", "--timeout-factor", 2)
    assert (found.agent_timeout_s, found.tool_timeout_s) == (7200, 120)
    assert found.verify_timeout_s > 2000
    assert limits("--agent", "oracle").tool_timeout_s == 3600
    assert limits("--agent-timeout", 5, "--agent", "nop").agent_timeout_s == 5


def test_canaries_and_a_flag_mark_evaluations(tmp_path: Path) -> None:
    plain = write_task(tmp_path / "plain")
    canary = write_task(tmp_path / "canary", test="# terminal-bench-canary GUID 1\n")
    named = write_task(tmp_path / "terminal-bench-2" / "a")
    assert not only(plain)["evaluation"]
    assert only(plain, "--evaluation")["evaluation"]
    assert only(canary)["evaluation"]
    assert only(named)["evaluation"]


def test_the_bundled_tasks_have_one_base_image() -> None:
    files = list((ROOT / "hermes_plugins/harbor/data").rglob("Dockerfile"))
    names = {image for file in files for image in plan(file.read_text()).images}
    assert names == {base_image.BASE}


def test_a_base_image_that_can_neither_be_pulled_nor_made_comes_with_the_command_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = None
    monkeypatch.setattr(shutil, "which", lambda _: None)
    why = cannot_be_had("docker.io/library/x:1", "no such host")
    with pytest.raises(ConfigurationError, match=r"no such host\. On Debian, `apt install mmdeb"):
        asyncio.run(base_image._make(store, base_image.BASE, why, pytest.fail))
    base_image.provide_base("docker", pytest.fail)  # which has images of its own


def test_a_stand_in_for_python_has_python_and_pip() -> None:
    named = BaseImage.named("python:3.13-slim-trixie", packages=("git",))
    assert named == BaseImage(
        "trixie", ("python3", "python3-pip", "python3-venv", "git"), None, True
    )
    assert any("EXTERNALLY-MANAGED" in word for word in named.command(Path("base.tar")))


@pytest.mark.parametrize(
    ("name", "suite"),
    [
        ("python:3.13-slim", "trixie"),
        ("python:3.11-slim-bookworm", "bookworm"),
        ("python:3.9.2", "bullseye"),
        ("python:3", "bookworm"),
        ("debian:13-slim", "trixie"),
        ("debian:bookworm-local", "bookworm"),
        ("team/own:1", "bookworm"),
    ],
)
def test_a_base_image_is_of_the_release_that_its_name_says(name: str, suite: str) -> None:
    assert (BaseImage.named(name).suite, can_stand_for(name)) == (suite, True)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("python:3.13-slim-bookworm", "bookworm has no Python 3.13"),
        ("python:3.12-slim", "Debian has no Python 3.12"),
        ("python:2", "Python 2"),
        (f"python:3.11@sha256:{'a' * 64}", "names content by its digest"),
        ("ubuntu:24.04", "is not made of Debian's packages"),
        ("debian:7", "not among Debian's releases"),
    ],
)
def test_a_base_image_that_would_pose_as_another_is_not_made(name: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        BaseImage.named(name)
    assert "images base" not in cannot_be_had(full_name(name), "no such host")


def test_a_base_image_trusts_authorities_that_are_certificates(tmp_path: Path) -> None:
    authority = tmp_path / "our own.crt"
    authority.write_text("-----BEGIN CERTIFICATE-----\n")
    base = BaseImage.named("debian:12", authorities=(str(authority),))
    base.check()
    hooks = [word for word in base.command(tmp_path) if word.startswith("--customize-hook")]
    assert f"'{authority}'" in hooks[0]
    assert hooks[-1] == '--customize-hook=chroot "$1" update-ca-certificates'
    (tmp_path / "text.crt").write_text("text")
    for path, why in (("none.crt", "cannot be read"), ("text.crt", "PEM format")):
        with pytest.raises(InputError, match=why):
            BaseImage.named("debian:12", authorities=(str(tmp_path / path),)).check()
