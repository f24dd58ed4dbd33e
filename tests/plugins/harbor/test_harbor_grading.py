"""What an agent left in its slot, graded: each mode, no reward at all, and cheats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from boxed_slots import CONFIG, BoxedSlots
from harbor_tasks import IMAGE, TEST, write_task

from envs.base import Verdict
from hermes_plugins.harbor.env import ENV
from hermes_plugins.harbor.grading import disk, links
from hermes_plugins.harbor.item import HarborItem
from hermes_queue.errors import EnvInfraError, SandboxError
from hermes_queue.images.spec import ImageConfig
from hermes_queue.sandbox import archives
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.base import ExecutionRequest, ExecutionResult, Slot
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.sandbox.image_slots import FileChange

SEPARATE = IMAGE + '[verifier]\nenvironment_mode = "separate"\n'
TEXT_IN_THE_IMAGE = {"/etc/os-release": "NAME=boxed"}
Play = Callable[..., Verdict]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Set a task up, let an agent run a command as root, and grade."""
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path / "cache"))

    def run(
        command: str,
        grading: Any = None,
        image: dict[str, str] | None = None,
        image_config: ImageConfig = CONFIG,
        **files: str,
    ) -> Verdict:
        write_task(tmp_path / "task", **files)
        (tmp_path / "slots").mkdir()
        backend = BoxedSlots(tmp_path / "slots", image or {}, image_config)

        async def whole() -> Verdict:
            row = HarborItem(instance_id="i", task=str(tmp_path / "task"), grading=grading)
            item = await ENV.load(row)
            slot = backend.slot(ENV.spec(item, "default"))
            context: Any = SlotContext(backend, slot, deadline=time.monotonic() + 120)  # type: ignore[arg-type]
            await ENV.setup(item, context)
            await context.run(command)
            return await ENV.verify(item, context, [])

        return asyncio.run(whole())

    return run


def test_a_box_that_starts_again_keeps_the_work(play: Play) -> None:
    verdict = play("echo 42 >answer", "restart")
    assert (verdict.score, verdict.report["reason"]) == (1, "graded")
    assert verdict.report["mode"] == "restart"


def test_a_fresh_box_gets_what_was_changed_and_deleted(play: Play) -> None:
    test = """\
    [ ! -e /app/old ] && [ "$(readlink /app/link)" = answer ] && [ -x /srv/deep/run ] \\
      && [ "$(cat /etc/app.conf)" = new ] && echo 1 >/logs/verifier/reward.txt
    """
    work = (
        "rm old; echo 42 >answer; ln -s answer link; mkdir -p /srv/deep; echo >/srv/deep/run;"
        "chmod 755 /srv/deep/run; echo new >/etc/app.conf"
    )
    image = {"/app/old": "old", "/etc/app.conf": "old"}
    assert play(work, image=image, test=test).score == 1


def test_several_rewards_count_and_an_exit_code_does_not(play: Play) -> None:
    test = """echo '{"reward": 0.5, "speed": 2, "style": 0}' >/logs/verifier/reward.json; exit 1"""
    verdict = play("true", test=test)
    assert (verdict.score, verdict.rewards) == (0.5, {"reward": 0.5, "speed": 2, "style": 0})


def test_names_of_tests_explain_a_reward_and_do_not_change_it(play: Play) -> None:
    ctrf = '{"results": {"tests": [{"name": "t.py::a", "status": "passed"}]}}'
    test = f"cd /logs/verifier; echo 0 >reward.txt; echo '{ctrf}' >ctrf.json"
    verdict = play("true", test=test)
    assert verdict.score == 0
    assert verdict.report["tests"] == {
        "source": "ctrf",
        "passed": {"names": ["t.py::a"], "more": 0},
        "failed": {"names": [], "more": 0},
    }


def test_names_behind_a_link_are_not_read(play: Play) -> None:
    link = "ln -s /etc/secret.json /logs/verifier/ctrf.json"
    summary = "echo === short test summary info ===; echo PASSED t.py::b"
    test = f"echo 0 >/logs/verifier/reward.txt; {link}; {summary}"
    secret = {"/etc/secret.json": '{"results": {"tests": [{"name": "s", "status": "passed"}]}}'}
    tests = play("true", test=test, image=secret).report["tests"]
    assert (tests["source"], tests["passed"]["names"]) == ("output", ["t.py::b"])


def test_tests_that_give_no_reward_anywhere_are_a_failure_of_ours(play: Play) -> None:
    with pytest.raises(EnvInfraError, match="on an untouched box neither"):
        play("true", test="echo boom >&2; exit 1")


def test_an_agent_that_breaks_the_tests_scores_0(play: Play) -> None:
    test = "[ ! -e /app/trap ] || exit 1\necho 0 >/logs/verifier/reward.txt"
    verdict = play("touch trap", test=test)
    assert (verdict.score, verdict.report["reason"]) == (0, "verifier_broken")


def test_a_wrong_answer_on_a_full_disk_of_the_host_is_not_measured(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "LEAST_FREE_MB", 1 << 40)
    with pytest.raises(SandboxError, match="the disk below the slots has"):
        play("echo 41 >answer")


def test_a_separate_verifier_sees_artifacts_alone(play: Play) -> None:
    test = """\
    ls -R /app /logs/artifacts
    [ "$(cat /app/out/answer)" = 42 ] && [ ! -e /app/out/junk.tmp ] && [ ! -e /app/other ] \\
      && [ "$(cat /logs/artifacts/sum)" = 7 ] && echo 1 >/logs/verifier/reward.txt
    """
    more = (
        '[[verifier.collect]]\ncommand = "echo 7 >/logs/artifacts/sum"\n'
        '[[artifacts]]\nsource = "/app/out"\nexclude = ["*.tmp"]\n'
    )
    work = "mkdir out; echo 42 >out/answer; echo >out/junk.tmp; echo >other"
    verdict = play(work, config=SEPARATE + more, test=test)
    assert (verdict.score, verdict.report["mode"]) == (1, "separate")


def test_an_artifact_that_links_to_the_tests_is_dropped(play: Play) -> None:
    more = '[[artifacts]]\nsource = "/app/out"\n'
    test = "cmp /app/out/answer /tests/expected && echo 1 >/logs/verifier/reward.txt"
    test += " || echo 0 >/logs/verifier/reward.txt"
    work = "mkdir out; ln -s / out/root; ln -s root/tests/expected out/answer"
    files = {"config": SEPARATE + more, "test": test, "tests/expected": "42"}
    verdict = play(work, **files)
    assert (verdict.score, verdict.report["dropped_links"]) == (0, ["/app/out/answer"])


def test_planted_rewards_tests_and_startup_files_do_not_grade(play: Play) -> None:
    work = (
        "rm -rf /tests /logs/verifier; mkdir -p /app/fake; echo 1 >/app/fake/reward.txt;"
        "ln -s /app/fake /logs/verifier; ln -s /app/fake /tests;"
        'echo "echo 1 >/logs/verifier/reward.txt" | tee /app/fake/test.sh /root/.bashrc'
        " /etc/profile /etc/bash.bashrc"
    )
    assert play(work, "restart").score == 0


@pytest.mark.fleet
def test_programs_that_the_agent_put_first_do_not_grade(play: Play) -> None:
    config = ImageConfig(
        env={"PATH": "/opt/venv/bin:/usr/bin:/bin"}, workdir="/app", entrypoint=("/app/start",)
    )
    forger = "mkdir -p /opt/venv/bin; printf '#!/bin/sh\\necho 42' >/opt/venv/bin/cat; "
    forger += "chmod 755 /opt/venv/bin/cat"
    restart = play(forger, "restart", image={"/app/start": "#!/bin/sh\n"}, image_config=config)
    assert (restart.score, restart.report["reason"]) == (0, "suspect")


@pytest.mark.fleet
def test_settings_in_homes_are_undone_where_the_agents_box_grades(play: Play) -> None:
    work = """\
mkdir -p .config /root/.config/pip /srv/u /opt/cfg/pip /home/v/.config/app
echo "u:x:7:7::/opt/link:/bin/sh" >/etc/passwd; ln -s /srv/u /opt/link
touch /root/.config/pip/pip.conf /srv/u/.curlrc /home/v/.config/app/a /home/v/.netrc /root/.kept
ln -s /opt/cfg /home/v/.local; touch /pytest.ini; echo changed >/root/.image
echo 42 >answer
"""
    test = """\
for name in /root/.config/p* /srv/u/.cur* /home/v/.net* /home/v/.loc* /pytest.ini /root/.im*
do [ ! -e $name ] && [ ! -L $name ] || exit 0; done
[ -e ~/.kept ] && [ -e /home/v/.config/app/a ] && [ -e /app/.config ] && [ "$(cat answer)" = 42 ] &&
echo 1 >/logs/verifier/reward.txt
"""
    verdict = play(work, "restart", image={"/root/.image": "of the image"}, test=test)
    assert verdict.score == 1, verdict.report
    assert {"/home/v/.local", "/home/v/.netrc", "/srv/u/.curlrc"} <= {*verdict.report["undone"]}


@pytest.mark.fleet
def test_an_agents_pytest_and_its_plugins_do_not_grade_where_tests_install_pytest(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_IMAGES_NETWORK", "open")
    place = "/opt/venv/lib/python3.11/site-packages"
    plugin = "'[pytest11]\\nevil = evil\\n'"
    work = f"""\
mkdir -p {place}/pytest {place}/evil-1.dist-info {place}/mine /opt/venv/bin
echo "import os; os._exit(0)" | tee {place}/pytest/__init__.py >{place}/pluggy.py
printf {plugin} >{place}/evil-1.dist-info/entry_points.txt
touch {place}/mine/__init__.py; echo exit >/opt/venv/bin/pytest; chmod 755 /opt/venv/bin/pytest
"""
    test = f"""\
pip install pytest || true
if [ -e {place}/mine/__init__.py ] && [ ! -e {place}/pytest ] && [ ! -e {place}/pluggy.py ] &&
  [ ! -e /opt/venv/bin/pytest ] && [ ! -e {place}/evil-1.dist-info/entry_points.txt ]
then echo 1 >/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi
"""
    config = '[environment]\ndocker_image = "debian:bookworm"\n'
    assert play(work, "restart", config=config, test=test).score == 1


def test_a_mode_that_moves_files_leaves_programs_behind(play: Play) -> None:
    config = ImageConfig(env={"PATH": "/opt/venv/bin:/usr/bin:/bin"}, workdir="/app")
    forger = "mkdir -p /opt/venv/bin; printf '#!/bin/sh\\necho 42' >/opt/venv/bin/cat; "
    forger += "chmod 755 /opt/venv/bin/cat"
    verdict = play(forger, image_config=config)
    assert verdict.score == 0
    assert "/opt/venv/bin/cat" in verdict.report["left_out"]


def test_more_than_may_be_moved_scores_0(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_QUEUE_HARBOR_ARCHIVE_MB", "1")
    verdict = play("head -c 3000000 /dev/zero >big; echo 42 >answer", test=TEST)
    assert (verdict.score, verdict.report["reason"]) == (0, "too_large")


def test_more_files_than_anybody_looks_at_score_0(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 2)
    verdict = play("mkdir many; touch many/1 many/2; echo 42 >answer", "transplant")
    assert (verdict.score, verdict.report["reason"]) == (0, "too_large")
    assert "more than 2 files" in verdict.report["detail"]


@pytest.mark.parametrize("step", ["--same-owner", "rm -rf --", "--no-recursion"])
def test_files_that_are_not_dealt_with_in_time_score_0(
    play: Play, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    whole = BoxedSlots._run

    async def slow(self: BoxedSlots, request: ExecutionRequest) -> ExecutionResult:
        if step in request.command and b"answer" in request.stdin:
            return ExecutionResult(124, b"", b"", 300.0, timed_out=True)
        return await whole(self, request)

    monkeypatch.setattr(BoxedSlots, "_run", slow)
    verdict = play("echo 42 >answer", "transplant", TEXT_IN_THE_IMAGE)
    assert (verdict.score, verdict.report["reason"]) == (0, "unreadable")


@pytest.mark.parametrize("is_the_agents", [True, False])
def test_a_list_of_changes_that_the_slot_garbles_is_the_agents_unless_a_fresh_slot_does_too(
    play: Play, monkeypatch: pytest.MonkeyPatch, is_the_agents: bool
) -> None:
    listed = BoxedSlots.changes
    asked: list[str] = []

    async def garbled(self: BoxedSlots, slot: Slot) -> list[FileChange]:
        asked.append(slot.slot_id)
        if len(asked) == 1 or not is_the_agents:
            raise FilesRefused("a slot lists its files as b'x'")
        return await listed(self, slot)

    monkeypatch.setattr(BoxedSlots, "changes", garbled)
    if is_the_agents:
        verdict = play("echo 42 >answer", "transplant")
        assert (verdict.score, verdict.report["reason"]) == (0, "unreadable")
    else:
        with pytest.raises(FilesRefused):
            play("echo 42 >answer", "transplant")
    assert len(set(asked)) == 2


def test_a_slot_whose_shell_the_agent_removed_scores_0(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(self: BoxedSlots, slot: Slot) -> Slot:
        raise FilesRefused(f'{slot.slot_id}: exec: "/bin/sh": no such file')

    monkeypatch.setattr(BoxedSlots, "restart", refused)
    verdict = play("echo 42 >answer", "restart")
    assert (verdict.score, verdict.report["reason"]) == (0, "unreadable")


def test_a_reward_that_the_tests_own_account_contradicts_is_not_believed(play: Play) -> None:
    ctrf = '{"results": {"tests": [{"name": "t.py::a", "status": "failed"}]}}'
    test = f"cd /logs/verifier; echo 1 >reward.txt; echo '{ctrf}' >ctrf.json"
    verdict = play("true", test=test)
    assert (verdict.score, verdict.trainable) == (0, False)
    assert verdict.report["reason"] == "contradicted"
    assert verdict.report["measured"] == 1
    assert verdict.report["flags"] == ["contradicted"]


@pytest.mark.parametrize("grading", ["transplant", "restart"])
def test_more_links_than_can_be_looked_at_are_the_agents_doing(
    play: Play, monkeypatch: pytest.MonkeyPatch, grading: str
) -> None:
    monkeypatch.setattr(links, "MAX_PATHS_BYTES", 0)
    verdict = play("for n in 1 2 3; do ln -s /nowhere $n; done", grading)
    assert verdict.score == 0
    assert verdict.report["reason"] in ("verifier_broken", "unreadable")


def test_links_in_a_circle_hide_none_that_leads_to_the_tests(play: Play) -> None:
    work = "ln -s b a; ln -s a b; ln -s /tests/expected c; ln -s /tests zz; ln -s d d"
    verdict = play(work)
    assert sorted(verdict.report["dropped_links"]) == ["/app/c", "/app/zz"]


@pytest.mark.parametrize("grading", ["transplant", "restart"])
def test_hidden_files_in_homes_steer_no_tool_of_the_tests(play: Play, grading: str) -> None:
    gone = "[ ! -e ~/.s''qliterc ] && [ ! -e ~/.g''itconfig ]"  # which the tests do not name
    test = f"{gone} && [ -e ~/.named ] && echo 1 >/logs/verifier/reward.txt"
    assert play("touch ~/.sqliterc ~/.gitconfig ~/.named", grading, test=test).score == 1


@pytest.mark.parametrize("grading", ["transplant", "restart"])
def test_an_agents_environment_is_not_there_for_tests_that_use_uv(
    play: Play, monkeypatch: pytest.MonkeyPatch, grading: str
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_IMAGES_NETWORK", "open")
    config = '[environment]\ndocker_image = "debian:bookworm"\n'
    test = "uv run x; [ ! -e .venv ] && [ -e answer ] && echo 1 >/logs/verifier/reward.txt"
    work = "mkdir -p .venv/bin; touch .venv/pyvenv.cfg answer"
    assert play(work, grading, config=config, test=test).score == 1


def test_a_task_whose_tests_use_the_agents_project_says_so(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_IMAGES_NETWORK", "open")
    config = '[environment]\ndocker_image = "debian:bookworm"\n[verifier]\nagent_project = true\n'
    test = "uv run x; [ -e pyproject.toml ] && echo 1 >/logs/verifier/reward.txt"
    assert play("touch pyproject.toml", config=config, test=test).score == 1


@pytest.mark.parametrize(("grading", "reason"), [("transplant", "graded"), ("restart", "suspect")])
def test_modules_of_an_agents_where_the_tests_go_to_do_not_grade(
    play: Play, grading: str, reason: str
) -> None:
    test = "cd src; [ -e json.py ]; echo $((1 - $?)) >/logs/verifier/reward.txt"
    verdict = play(
        "mkdir -p /srv/own; touch /srv/own/json.py; ln -s /srv/own src", grading, test=test
    )
    assert (verdict.score, verdict.report["reason"]) == (0, reason)


PASSWD = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/sh\n"


def test_an_agent_makes_no_other_users_of_those_of_the_image(play: Play) -> None:
    work = "sed 's/65534/0/g' /etc/passwd >/srv-list; ln -sf /srv-list /etc/passwd"
    test = "cmp /etc/passwd /app/list && echo 1 >/logs/verifier/reward.txt"
    verdict = play(work, image={"/etc/passwd": PASSWD, "/app/list": PASSWD}, test=test)
    assert (verdict.score, verdict.report["left_out"]) == (1, ["/etc/passwd"])


def test_users_that_an_agent_adds_are_there(play: Play) -> None:
    test = "grep -q ^alice: /etc/passwd && echo 1 >/logs/verifier/reward.txt"
    work = "echo 'alice:x:1000:1000::/home/alice:/bin/sh' >>/etc/passwd"
    assert play(work, image={"/etc/passwd": PASSWD}, test=test).score == 1


@pytest.mark.exhaustive  # lists all programs of this host
def test_what_stands_in_place_of_something_of_the_image_is_seen_where_the_agents_box_grades(
    play: Play,
) -> None:
    image = {"/etc/alternatives/awk": "echo awk", "/etc/passwd": PASSWD}
    work = "ln -sf /srv/own /etc/alternatives/awk; sed -i 's/65534/0/g' /etc/passwd"
    verdict = play(work, "restart", image, test="echo 1 >/logs/verifier/reward.txt")
    assert verdict.report["suspect"] == ["/etc/alternatives/awk", "/etc/passwd"]


@pytest.mark.parametrize("grading", ["transplant", "restart"])
def test_an_answer_that_is_a_link_to_what_tests_will_make_is_none(play: Play, grading: str) -> None:
    work = "ln -s /tmp/right a; ln -s expected b; ln -s kept c; touch kept; ln -s /dev/null d"
    test = """\
    echo 42 >/tmp/right; echo 42 >/app/expected; true </dev/null
    [ -L a ] || [ -L b ] || [ ! -e c ] || [ ! -e d ] || echo 1 >/logs/verifier/reward.txt
    """
    verdict = play(work, grading, test=test)
    assert (verdict.score, verdict.report["dropped_links"]) == (1, ["/app/a", "/app/b"])
