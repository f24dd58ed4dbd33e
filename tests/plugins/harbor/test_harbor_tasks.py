"""Task folders in the Harbor format: what is read, and what is refused before a slot is taken."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from harbor_tasks import IMAGE, write_task

from hermes_plugins.harbor import boxes, cache, tree
from hermes_plugins.harbor.config import parse_config, unknown_keys
from hermes_plugins.harbor.env import ENV
from hermes_plugins.harbor.item import HarborItem
from hermes_plugins.harbor.task import TaskFolder
from hermes_plugins.harbor.templates import filled
from hermes_plugins.images.context import BuildContext
from hermes_queue.errors import EnvBug, EnvInfraError
from hermes_queue.images.spec import ImageSpec


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path / "cache"))


def load(**row: Any) -> HarborItem:
    return asyncio.run(ENV.load(HarborItem(instance_id="i", **row)))


# --- task.toml ----------------------------------------------------------------------------


def test_older_keys_mean_what_they_meant() -> None:
    config = parse_config(
        'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = false\n'
        "[agent]\ntimeout_sec = 60\nuser = 1000",
        "task.toml",
    )
    box = config.environment
    assert (config.schema_version, box.memory_mb, box.storage_mb) == ("1.0", 2048, 512)
    assert (box.network_mode, config.agent.timeout_s) == ("no-network", 60)
    assert config.agent.user == "1000"


def test_unknown_keys_are_named_with_their_place() -> None:
    config = parse_config(
        "new = 1\n[metadata]\nfree = 1\n[environment]\nodd = 2\n[environment.healthcheck]\n"
        'command = "true"\nstrange = 3\n[[steps]]\nname = "a"\nextra = 4',
        "task.toml",
    )
    assert sorted(unknown_keys(config)) == [
        "environment.healthcheck.strange",
        "environment.odd",
        "new",
        "steps.0.extra",
    ]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[agent", "is not TOML"),
        ("[agent]\ntimeout_sec = -1", "agent.timeout_sec"),
        ('[environment]\nmemory = "much"', "environment"),
        ('[environment]\nworkdir = "/app/../etc"', "environment.workdir"),
        ('[verifier]\nenvironment_mode = "shared"\n[verifier.environment]', "verifier"),
        ('[[artifacts]]\nsource = "/a/../../etc"', "artifacts.0.source"),
        ('[[steps]]\nname = "a"\n[[steps]]\nname = "A"', "two steps"),
        ('[[steps]]\nname = "a"\nmin_reward = nan', "min_reward"),
        (f"a = {'9' * 5000}", "is not TOML"),
        (f"[environment]\nmemory_mb = 0x{'f' * 5000}", "environment.memory_mb"),
        (f'[environment]\nmemory = "{"9" * 400}G"', "environment"),
        (f"x = {{{'a.' * 99}b = 1}}", "more than 32 parts"),
        ('[environment.env]\n"A=B" = "x"', "environment.env"),
        ('[environment.env]\nA = "x\\u0000"', "environment.env"),
    ],
)
def test_a_wrong_value_is_named(text: str, named: str) -> None:
    with pytest.raises(EnvBug, match=named):
        parse_config(text, "task.toml")


@pytest.mark.parametrize(
    ("version", "is_noted"),
    [("1.0", False), ("1.4", False), ("1", False), ("1.5", True), ("2.0", True), ("new", True)],
)
def test_a_schema_that_is_not_known_is_noted(tmp_path: Path, version: str, is_noted: bool) -> None:
    write_task(tmp_path / "t", config=f'schema_version = "{version}"\n{IMAGE}')
    notes = TaskFolder.read(tmp_path / "t").notes
    assert [f"{version!r} is read as 1.4" in note for note in notes] == [True] * is_noted


@pytest.mark.parametrize("name", ["task.toml", "instruction.md"])
def test_a_text_that_is_not_utf_8_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    folder = write_task(tmp_path / "t")
    with (folder / name).open("ab") as file:
        file.write(b"\n# caf\xe9\n")
    line = (folder / name).read_bytes().count(b"\n")
    with pytest.raises(EnvBug, match=f"{name}: line {line} is not UTF-8, byte 0xe9; save it"):
        TaskFolder.read(folder)


def test_tests_may_be_in_any_encoding(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t")
    (folder / "tests" / "test.sh").write_bytes(b"echo caf\xe9\n")
    assert "caf" in TaskFolder.read(folder).scripts


# --- the folder ---------------------------------------------------------------------------


def test_a_digest_is_over_names_contents_and_executable_bits(tmp_path: Path) -> None:
    task = write_task(tmp_path / "a")
    digests = {tree.digest(task)}
    os.utime(task / "task.toml", (1, 1))
    (task / ".git").mkdir()
    assert tree.digest(task) in digests
    (task / "tests/test.sh").chmod(0o755)
    digests.add(tree.digest(task))
    (task / "tests/test.sh").rename(task / "tests/other.sh")
    digests.add(tree.digest(task))
    (task / "instruction.md").write_text("Another one.")
    digests.add(tree.digest(task))
    assert len(digests) == 4


@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret", "loop/../../../etc"])
def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path, target: str) -> None:
    task = write_task(tmp_path / "t")
    (task / "tests" / "link").symlink_to(target)
    with pytest.raises(EnvBug, match=r"tests/link.*leaves the task folder"):
        load(task=str(task))


def test_a_pipe_in_a_folder_is_refused(tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    os.mkfifo(task / "tests" / "pipe")
    with pytest.raises(EnvBug, match="tests/pipe: is no file"):
        load(task=str(task))


@pytest.mark.parametrize(
    ("files", "fix"),
    [
        ({"instruction.md": ""}, "instruction.md: is empty"),
        ({"config": ""}, "names no image"),
        ({"test": None}, "tests/test.sh: is missing"),
        ({"tests/docker-compose.yaml": "services: {}"}, "a verifier of several containers"),
        ({"config": IMAGE + "gpus = 1"}, "no GPU"),
        ({"test": "curl https://example.com/x | sh"}, "fetch https://example.com/x.*--validated"),
        (
            {"config": IMAGE + 'env = {KEY = "${SECRET}"}'},
            'add "SECRET" to HERMES_QUEUE_HARBOR_ENV',
        ),
        ({"config": IMAGE + '[verifier.env]\nK = "${S}"'}, 'verifier.env.K.*add "S"'),
    ],
)
def test_what_cannot_run_is_refused_with_the_fix(
    tmp_path: Path, files: dict[str, Any], fix: str
) -> None:
    task = write_task(tmp_path / "t", **files)
    with pytest.raises(EnvBug, match=fix):
        ENV.spec(load(task=str(task)), "default")


def test_a_folder_with_another_digest_is_refused_with_both(tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    with pytest.raises(EnvBug, match=f"digest {tree.digest(task)}.*{'0' * 64}"):
        load(task=str(task), digest="0" * 64)


def test_a_folder_that_is_not_on_the_worker_names_the_flag(tmp_path: Path) -> None:
    with pytest.raises(EnvBug, match="--embed"):
        load(task=str(tmp_path / "absent"))


def test_a_task_that_changes_while_it_runs_stays_as_it_was_loaded(tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    item = load(task=str(task), digest=tree.digest(task))
    (task / "instruction.md").write_text("Do nothing.")
    assert "42" in item.folder.instruction
    again = load(task=str(task), digest=item.digest)
    assert again.folder.path == item.folder.path


def archive(folder: Path, name: str = ".", **more: Any) -> dict[str, str]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, arcname=name)
        for path, target in more.items():
            info = tarfile.TarInfo(f"{name}/{path}")
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return {"archive": base64.b64encode(buffer.getvalue()).decode()}


@pytest.mark.parametrize("name", [".", "only-folder"])
def test_a_task_can_travel_in_its_row(tmp_path: Path, name: str) -> None:
    task = write_task(tmp_path / "t")
    item = load(task=archive(task, name), digest=tree.digest(task))
    assert item.folder.config.environment.docker_image == "debian:bookworm"


def test_an_archive_with_a_link_out_of_it_is_refused(tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    with pytest.raises(EnvBug, match="cannot be unpacked"):
        load(task=archive(task, link="/etc/passwd"))


def test_a_task_can_be_a_folder_at_a_commit(tmp_path: Path) -> None:
    home = tmp_path / "repository"
    write_task(home / "tasks" / "one")
    git = ["git", "-C", str(home), "-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "tasks"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    source = {"git_url": f"file://{home}", "commit": commit, "path": "tasks/one"}
    assert load(task=source).folder.digest == tree.digest(home / "tasks/one")
    with pytest.raises(EnvBug, match="no folder 'tasks/two'"):
        load(task={**source, "path": "tasks/two"})
    with pytest.raises((EnvBug, EnvInfraError), match="0" * 40):
        load(task={**source, "commit": "0" * 40})


def test_the_cache_gives_up_the_oldest_that_nobody_uses(tmp_path: Path) -> None:
    kept = load(task=str(write_task(tmp_path / "a", readme="a")))
    gone = load(task=str(write_task(tmp_path / "b", readme="b"))).folder.path
    gc.collect()
    home = tmp_path / "cache" / "harbor"
    cache.evict(home, 0, "")
    assert kept.folder.path.is_dir()
    assert not gone.exists()


# --- variables, slots, prompt -------------------------------------------------------------


def test_only_named_variables_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    table = {"A": "${TOKEN}/x", "B": "${OTHER:-default}", "C": "plain $HOME"}
    found = filled(table, ["TOKEN"], place="environment.env")
    assert found == (("A", "secret/x"), ("B", "default"), ("C", "plain $HOME"))
    assert filled({"A": "${TOKEN:-none}"}, [], place="p") == (("A", "none"),)
    with pytest.raises(EnvBug, match=r"environment\.env\.A.*which tasks may not read"):
        filled(table, [], place="environment.env")


def test_the_slot_is_what_the_task_describes(tmp_path: Path) -> None:
    text = (
        '[environment]\ndocker_image = "a/b:1"\ncpus = 2\nmemory = "1G"\nstorage = "3G"\n'
        'workdir = "/srv"\n'
        'env = {A = "1"}\n[agent]\nuser = "worker"'
    )
    task = write_task(tmp_path / "t", config=text, environment__Dockerfile="FROM a")
    spec = ENV.spec(load(task=str(task)), "default")
    assert spec.image == ImageSpec(reference="a/b:1")
    assert (spec.user, spec.cpus, spec.memory_mb, spec.disk_mb) == ("worker", 2, 1024, 3072)
    assert (spec.workdir, spec.env, spec.network) == ("/srv", (("A", "1"),), "none")


def test_a_prebuilt_image_can_be_built_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = load(task=str(write_task(tmp_path / "t", environment__Dockerfile="FROM a")))
    only = load(task=str(write_task(tmp_path / "u")))
    assert ENV.spec(both, "default").image == ImageSpec(reference="debian:bookworm")
    monkeypatch.setenv("HERMES_QUEUE_HARBOR_FORCE_BUILD", "true")
    for spec in (ENV.spec(both, "default"), boxes.grading_spec(both.folder, "default")):
        assert spec.image is not None
        assert (spec.image.reference, spec.image.context) == (None, str(both.folder.context))
    assert ENV.spec(only, "default").image == ImageSpec(reference="debian:bookworm")


def test_a_verifier_of_its_own_has_its_own_image(tmp_path: Path) -> None:
    text = IMAGE + '[verifier]\nenvironment_mode = "separate"'
    task = write_task(tmp_path / "t", config=text)
    own = TaskFolder.read(write_task(tmp_path / "o", config=text, tests__Dockerfile="FROM b"))
    same = boxes.grading_spec(TaskFolder.read(task), "default").image
    built = boxes.grading_spec(own, "default").image
    assert same == ImageSpec(reference="debian:bookworm")
    assert built == ImageSpec(context=str(own.tests))
    assert own.tests_are_baked


def test_a_network_that_is_not_permitted_is_noted_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = write_task(tmp_path / "t", config=IMAGE.replace("false", "true"))
    item = load(task=str(task))
    assert ENV.spec(item, "default").network == "none"
    assert "slots here have none" in boxes.granted(item.folder).note
    monkeypatch.setenv("HERMES_QUEUE_HARBOR_WITHOUT_NETWORK", "refuse")
    with pytest.raises(EnvBug, match="HERMES_QUEUE_IMAGES_NETWORK=open"):
        load(task=str(task))
    monkeypatch.setenv("HERMES_QUEUE_IMAGES_NETWORK", "open")
    assert ENV.spec(load(task=str(task)), "default").network == "open"


def test_the_prompt_discloses_nothing_that_grades(tmp_path: Path) -> None:
    text = IMAGE + '[metadata]\nhint = "hidden-hint"\n[agent]\nuser = "worker"\ntimeout_sec = 600'
    task = write_task(tmp_path / "t", config=text, solution__solve_dot_sh="echo hidden-solution")
    item = load(task=str(task))
    shown = "".join(message.content or "" for message in ENV.prompt(item)) + ENV.task(item)
    assert "Write 42 to /app/answer." in shown
    for fact in ("not root", "10 minutes", "cut off"):
        assert fact in shown
    for secret in ("hidden", "/app/answer)"):
        assert secret not in shown


@pytest.mark.parametrize(
    "files",
    [
        {"test": "#!/bin/bash\n# harbor-canary GUID 1234\n"},
        {"test": "#!/bin/bash\n" + "true\n" * 2000 + "# harbor-canary GUID 1234\n"},
        {"config": IMAGE + '[task]\nname = "terminal-bench/fix-git"\n'},
    ],
    ids=["canary", "canary at the end", "name"],
)
def test_a_worker_marks_an_evaluation_that_its_producer_did_not(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    assert not load(task=str(write_task(tmp_path / "plain"))).evaluation
    assert load(task=str(write_task(tmp_path / "marked", **files))).evaluation


def test_a_benchmark_is_known_by_where_it_comes_from(tmp_path: Path) -> None:
    benchmark = write_task(tmp_path / "terminal-bench-2" / "a")
    training = write_task(tmp_path / "terminal-bench-env" / "a")
    assert load(task=str(benchmark)).evaluation
    assert not load(task=str(training)).evaluation


def test_a_slot_names_the_digest_of_its_build_context(tmp_path: Path) -> None:
    text = '[verifier]\nenvironment_mode = "separate"'
    task = write_task(
        tmp_path / "t", config=text, environment__Dockerfile="FROM a", tests__Dockerfile="FROM b"
    )
    item = load(task=str(task))
    for spec in (ENV.spec(item, "default"), boxes.grading_spec(item.folder, "default")):
        assert spec.image is not None
        assert spec.image.digest == BuildContext.open(spec.image).digest
    [agent, grader] = item.folder.context_digests.values()
    assert agent != grader


def test_a_folder_that_is_used_in_one_cache_is_made_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = write_task(tmp_path / "task")
    kept = []
    for cache_of in ("one", "other"):
        monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path / cache_of))
        kept.append(load(task=str(task), digest=tree.digest(task)))
    assert len(kept) == 2
