"""Programs of `--agent command`: their definitions, where they are found, what they are told."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from envs.base import check_program_env, task_of
from envs.gsm8k import Gsm8k
from envs.swe_smith import ENV as SWE_SMITH
from hermes_queue.agent.programs.catalogue import (
    find_program,
    load_program,
    make_program,
    pack,
    preset_names,
)
from hermes_queue.agent.programs.conceal import check_conceal
from hermes_queue.agent.programs.definition import read_definition
from hermes_queue.agent.programs.program import Places
from hermes_queue.bodies import codec
from hermes_queue.errors import ConfigurationError, EnvBug, ModelConfigError
from hermes_queue.extensions import own
from hermes_queue.models import Message
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.wire.parameters import program_sha256
from producers.base import main
from producers.swe_smith import PRODUCER

RUN = "agent --url {url} --key {key} < {task}"
PIN = "agent==1.0 --hash=sha256:" + "0" * 64
PLACES = Places(
    task="/tmp/task",
    model="org/model-7b:free",
    url="http://127.0.0.1:7",
    key="hq-key",
    home="/home/agent",
    workspace="/workspace",
    max_turns=9,
)


def of(**fields: object) -> object:
    return read_definition({"name": "mine", "run": RUN, **fields})


def toml(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# --- templates ----------------------------------------------------------------------------


def test_placeholders_are_filled_in_the_command_the_variables_and_the_files():
    program = make_program(
        of(
            env={"HOME_OF_IT": "{home}/.it"},
            files={"{home}/.it/config.json": '{"model": "{model}", "turns": {"max": {max_turns}}}'},
            keep=["{workspace}/log.json"],
        )
    )
    started = program.start(PLACES)
    assert started.command == "agent --url http://127.0.0.1:7 --key hq-key < /tmp/task"
    assert started.env == {"HOME_OF_IT": "/home/agent/.it"}
    assert json.loads(started.files["/home/agent/.it/config.json"]) == {
        "model": "org/model-7b:free",
        "turns": {"max": 9},
    }
    assert started.keep == ("/workspace/log.json",)


@pytest.mark.parametrize("text", ["${url}", "${HOME}", "{}", '{"a": {}}', "{a,b}", "{1..3}"])
def test_other_braces_stay_as_they_are(text):
    program = make_program(of(run=f"{RUN} {text}"))
    assert program.start(PLACES).command.endswith(f" {text}")


def test_double_braces_stand_for_the_word_in_braces():
    program = make_program(of(run=RUN + " {{url}}"))
    assert program.start(PLACES).command.endswith(" {url}")


@pytest.mark.parametrize("name", ['a"b', "a b", "a;b", "a\nb", "", "$(id)"])
def test_a_model_name_that_would_end_a_string_in_a_configuration_is_refused(name):
    with pytest.raises(ModelConfigError, match="model"):
        make_program(of()).start(replace(PLACES, model=name))


# --- definitions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"run": "agent {tsak} {url} {key}"}, r"run: \{tsak\} is no placeholder; there are \{task"),
        ({"run": "agent {key} < {task}"}, r"\{url\} is neither in run nor in env or files"),
        ({"run": "agent {url} < {task}"}, r"\{key\}.*its key for the model"),
        ({"run": "agent {url} {key}"}, r"\{task\}.*its task"),
        ({"env": {"A": "{home"}, "files": {"{home}/f": "{hme}"}}, r"files.*\{hme\} is no"),
        ({"self_test": "agent {url}"}, r"self_test: has no \{url\}, only \{agent\}"),
        ({"env": {"A B": "x"}}, "env: 'A B' is not the name of a variable"),
        ({"files": {"/etc/passwd": "x"}}, "files: '/etc/passwd' must be a file below"),
        ({"keep": ["{home}/../x"]}, "keep:.*must be a file below"),
        ({"lock": "agent==1.0"}, "lock: line 1, 'agent==1.0': has no --hash"),
        ({"lock": f"{PIN}\nagent>=1"}, "lock: line 2, 'agent>=1': is not of the form"),
        ({"lock": f"{PIN} --index-url https://x"}, "lock: line 1"),
        ({"lock": PIN.replace("1.0", "${VERSION}")}, "lock: line 1"),
        ({"lock": f"--index-url https://x\n{PIN}"}, "lock: line 1"),
        (
            {"archives": [{"url": "http://x/y", "sha512": "0" * 128}]},
            "archives.0.url: must be an h",
        ),
        ({"dialect": "gemini"}, "dialect: .*'chat', 'responses' or 'messages'"),
        ({"netwrok": True}, "netwrok: there is no such field; there are .*refusal_status"),
        ({"name": "My Agent"}, "name"),
        (
            {"pythons": ["3.12", "3.9"]},
            "pythons: 3.9: pip installs locks into Python 3.10 or newer",
        ),
        ({"answer": "finish"}, "answer: String should match"),
        ({"lock": "\n".join([PIN] * 20_000)}, "lock: String should have at most 1048576"),
        ({"env": {f"A{n}": "x" * 60_000 for n in range(20)}}, "at most 1048576 can travel with"),
    ],
)
def test_a_wrong_definition_is_refused_with_the_field(fields, named):
    with pytest.raises(ValueError, match=named):
        of(**fields)


def test_a_lock_may_have_comments_continuations_and_markers():
    lock = (
        "# made by a tool\n\n"
        f"agent[extra]==1.0 ; python_version >= '3.11' \\\n    --hash=sha256:{'0' * 64} \\\n"
        f"    --hash=sha256:{'1' * 64}\n    # via nothing\n"
    )
    assert of(lock=lock).lock == lock


def test_of_a_lock_nothing_is_installed_from_but_the_lines_that_were_checked():
    hidden = f"# coding: utf-7\n# +AAo---index-url https://x+AAo-\n{PIN} \\\n{PIN[11:]} # +AAo-b==1"
    asset = make_program(of(lock=hidden)).asset
    [lock] = re.findall(r"hq_lock\(\) {\n\tprintf %s '(.*?)'\n}", asset.script, re.DOTALL)
    assert lock == f"{PIN} {PIN[11:]}\n"


# --- where they are found -----------------------------------------------------------------


def test_there_are_these_presets():
    names = "mini-swe-agent mini-swe-agent-text hermes-agent aider openhands codex claude-code"
    assert preset_names() == tuple(names.split())


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_pinned_and_is_told_task_model_url_and_key(name):
    definition = find_program(name)
    started = make_program(definition).start(PLACES)
    texts = [started.command, *started.env.values(), *started.files.values()]
    for value in (PLACES.task, PLACES.model, PLACES.url, PLACES.key):
        assert any(value in text for text in texts), value
    assert definition.version
    assert definition.self_test
    assert definition.lock or definition.archives
    assert PLACES.key not in started.command, "command lines are in records"


@pytest.mark.parametrize("name", preset_names())
def test_locks_of_presets_name_no_index(name):
    lock = find_program(name).lock
    assert not any(word in lock for word in ("://", "--find-links", "--index", "--extra-index"))


def test_an_unknown_preset_is_refused_with_those_there_are():
    with pytest.raises(ConfigurationError, match=r"'hermes'.*hermes-agent, aider.*FILE.toml:NAME"):
        find_program("hermes")


def test_a_file_with_one_program_needs_no_name(tmp_path):
    (tmp_path / "mine.lock").write_text(PIN)
    file = toml(
        tmp_path / "mine.toml", f"[programs.mine]\nrun = '{RUN}'\nrequirements = 'mine.lock'\n"
    )
    assert find_program(str(file)) == find_program(f"{file}:mine") == of(lock=PIN)


def test_a_program_like_another_differs_in_what_it_says(tmp_path):
    file = toml(
        tmp_path / "mine.toml",
        "[programs.short]\nlike = 'hermes-agent'\n"
        "run = '{agent}/bin/hermes -t terminal -z \"$(cat {task})\"'\nenv = { DEBUG = '1' }\n",
    )
    mine, preset = find_program(f"{file}:short"), find_program("hermes-agent")
    assert mine.run != preset.run
    assert mine.env == {**preset.env, "DEBUG": "1"}
    assert (mine.lock, mine.files) == (preset.lock, preset.files)
    assert make_program(mine).asset == make_program(preset).asset


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[programs.a]\nrun = 3\n", "programs.a: run: Input should be a valid string"),
        ("[programs.a]\nruns = 'x'\n", "programs.a: runs: there is no such field"),
        ("[programs.a]\nrun = 'x'\n", r"programs.a: \{task\} is neither in run nor in env"),
        ("[programs.a]\nlike = 'b'\n", "programs.a.like: there is no program 'b'"),
        ("[programs.a]\nlike = 'b'\n[programs.b]\nlike = 'a'\n", "leads in a circle"),
        ("[programs.a]\nrequirements = 'no.lock'\n", "programs.a.requirements: cannot be read"),
        ("[programs.a]\nrequirements = ['x==1']\n", "must be the path of a lock with hashes"),
        ("[programs.a]\nlock = 'x'\n", "name the file of the lock in `requirements`"),
        ("[agent]\nrun = ''\n", r"must consist of tables \[programs.NAME\]"),
        ("[programs.a\n", "is no TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_file_program_and_field(tmp_path, text, named):
    file = toml(tmp_path / "mine.toml", text)
    with pytest.raises(ConfigurationError, match=named) as caught:
        find_program(f"{file}:a")
    assert str(file) in str(caught.value)


def test_a_file_with_several_programs_needs_a_name(tmp_path):
    file = toml(tmp_path / "mine.toml", "[programs.a]\n[programs.b]\n")
    with pytest.raises(ConfigurationError, match=r"has 2 programs.*it has a, b"):
        find_program(str(file))


def test_a_packed_definition_arrives_as_it_was():
    definition = find_program("hermes-agent")
    packed = pack(definition)
    sha256 = program_sha256({"program": packed.reference})
    item = codec.decompress_item(packed.items[sha256], sha256=sha256)
    assert load_program(item) == make_program(definition)
    assert len(json.dumps(packed.reference)) < 200


@pytest.mark.parametrize("program", ["hermes", "mine.toml:mine", {"name": "x"}, None, 7])
def test_a_worker_refuses_what_is_no_program_for_good(program):
    with pytest.raises(ModelConfigError):
        load_program(program)


def test_packages_that_an_archive_or_a_package_brings_are_known_as_well(tmp_path):
    for place in ("app/lib/python3.12/site-packages/jinja2", "a/site-packages/pip/_vendor/rich"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "app/lib/python3.12/site-packages/six.py").touch()
    (tmp_path / "app/lib/python3.12/site-packages/jinja2-3.1.dist-info").mkdir()
    (tmp_path / "app/lib/python3.12/json").mkdir()
    absent = {"url": "https://example.org/a.tar.gz", "sha512": "0" * 128, "machine": "none"}
    asset = make_program(of(archives=[absent])).asset
    subprocess.run(["bash", "-euc", asset.script], cwd=tmp_path, check=True, timeout=60)
    found = (tmp_path / "top_level.txt").read_text().split()
    assert found == ["jinja2", "pip", "rich", "six"]


# --- programs and envs --------------------------------------------------------------------


async def test_a_program_with_the_subject_of_the_row_in_its_environment_is_refused():
    program = load_program("mini-swe-agent")

    async def read(asset, path):
        return b"jinja2\nyaml\n"

    await check_conceal(program, SlotSpec(conceal=("schedule",)), read)
    with pytest.raises(EnvBug, match=r"mini-swe-agent brings the package 'jinja2\.sandbox'"):
        await check_conceal(program, SlotSpec(conceal=("x", "jinja2.sandbox")), read)


@pytest.mark.parametrize("env", [Gsm8k(), SWE_SMITH])
def test_tasks_for_programs_name_no_tool_of_ours(env):
    file = Path(__file__).parents[2] / "producers" / "data" / f"{env.name}.jsonl"
    for line in file.read_text().splitlines():
        text = task_of(env, env.Item.model_validate_json(line))
        assert not any(f"`{name}`" in text for name in own("tool"))
        assert "submit" not in text.lower() or env.name == "gsm8k"


class PlainEnv:
    """An env that knows nothing of programs."""

    name = "plain"
    tools = ("terminal",)

    def prompt(self, item):
        return [
            Message(role="system", content=" Solve it. "),
            Message(role="user", content=item),
            Message(role="assistant", content="Yes."),
        ]


class SearchingEnv(PlainEnv):
    tools = ("terminal", "my.package:SEARCH")


class ReassuringEnv(SearchingEnv):
    def task(self, item):
        return "It can be done without searching."


def test_without_a_task_of_its_own_an_env_gives_what_its_prompt_says_first():
    assert task_of(PlainEnv(), "What is it?") == "Solve it.\n\nWhat is it?"


def test_an_env_with_tools_that_no_program_can_call_is_refused():
    with pytest.raises(ModelConfigError, match=r"env plain: its tool 'my.package:SEARCH'.*task\("):
        check_program_env(SearchingEnv())
    check_program_env(PlainEnv())
    check_program_env(ReassuringEnv())


# --- producers ----------------------------------------------------------------------------


def dry(*flags: str) -> int:
    return main(PRODUCER, ["--items", "all", "--dry-run", "--agent", "command", *flags])


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--model", "m"), "--agent command: name the program with --agent-param program=NAME"),
        (("--model", "m", "--agent-param", "program=x"), "--agent-param program: program 'x'"),
        (("--agent-param", "program=codex"), "--agent command: name the model with --model"),
        (("--model", "a b", "--agent-param", "program=codex"), "--agent command: model 'a b'"),
    ],
)
def test_a_producer_refuses_before_anything_is_sent(capsys, flags, named):
    assert dry(*flags) == 2
    assert named in capsys.readouterr().err


def test_rows_about_a_package_of_the_program_are_skipped_with_the_reason(tmp_path, capsys):
    file = toml(
        tmp_path / "mine.toml", f"[programs.mine]\nrun = '{RUN}'\nimports = ['schedule', 'toolz']\n"
    )
    assert dry("--model", "m", "--agent-param", f"program={file}", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["skipped"] == {
        "about schedule, which program mine brings": 2,
        "about toolz, which program mine brings": 2,
    }
    assert summary["items"] == 12
