"""Envs, tools, agents, sinks and all other extensions are found in one way."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import plugin
import pytest
from click.testing import CliRunner
from plugin import Install
from records import make_job

from hermes_queue import extensions
from hermes_queue.cli import cli
from hermes_queue.errors import ConfigurationError, EnvBug
from hermes_queue.plugins import KINDS
from workers.imports import import_named

ROOT = Path(__file__).parents[2]
PACKAGES = ("hermes_queue", "workers", "producers", "envs", "hermes_plugins")

TOOL = """
from hermes_queue.tools.base import Arguments, Tool, ToolResult
async def run(context, arguments):
    return ToolResult("heard")
TOOL = Tool(name="listen", description="Listens.", arguments=Arguments, run=run)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs plugins for the length of a test."""
    with plugin.installing(tmp_path, monkeypatch) as install:
        yield install


@pytest.mark.parametrize("kind", KINDS)
def test_ours_have_the_attribute_of_their_kind_and_are_what_it_asks_for(kind: str) -> None:
    assert extensions.own(kind)
    for name in extensions.own(kind):
        extensions.load(kind, name)


def test_a_plugins_extension_is_found_by_the_name_that_it_declares(install: Install) -> None:
    install("their-tools", {"theirs.py": TOOL}, {"tool": {"listen": "theirs:TOOL"}})
    assert extensions.load("tool", "listen").name == "listen"
    assert {"listen", "terminal"} <= set(extensions.known("tool"))


def test_the_same_object_has_a_name_without_a_plugin(install: Install) -> None:
    install("not-a-plugin", {"theirs.py": TOOL}, {})
    assert extensions.load("tool", "theirs:TOOL").name == "listen"


def test_ours_cannot_be_shadowed(install: Install) -> None:
    install("evil", {"evil.py": TOOL}, {"tool": {"terminal": "evil:TOOL"}})
    assert extensions.load("tool", "terminal").name == "terminal"
    assert "evil" not in sys.modules
    [error] = [each.error for each in extensions.listed() if each.origin == "evil 1.0"]
    assert error == "hermes-queue has a tool of this name, which is used instead"


def test_two_plugins_with_one_name_are_refused(install: Install) -> None:
    for name in ("first", "second"):
        install(name, {f"{name}.py": TOOL}, {"tool": {"listen": f"{name}:TOOL"}})
    match = r"declared by .*first 1\.0 .*second 1\.0|declared by .*second 1\.0 .*first 1\.0"
    with pytest.raises(ConfigurationError, match=match):
        extensions.load("tool", "listen")


def test_a_plugin_that_cannot_be_imported_is_named_with_the_cause(install: Install) -> None:
    source = "raise RuntimeError('no licence key')"
    install("their-tools", {"theirs.py": source}, {"tool": {"listen": "theirs:TOOL"}})
    match = r"plugin their-tools 1\.0, theirs:TOOL.* RuntimeError: no licence key"
    with pytest.raises(ConfigurationError, match=match):
        extensions.load("tool", "listen")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("tool", "listn", "tool 'listn' is unknown; known: calculator, .*terminal.*your own: "),
        ("tool", "listn", r"package\.module:TOOL, or .* group hermes_queue\.plugins"),
        ("tool", "json:loads", "is a function, not a Tool: see hermes_queue.tools.base:Tool"),
        ("env", "json:loads", "has no Item, name, oracle.*: see envs.base:Environment"),
        ("agent", "json:no_such", "cannot be loaded: AttributeError"),
        ("sink", "no_such_module:FORMAT", "cannot be loaded: ModuleNotFoundError"),
        ("backend", "", r"backend '' is unknown; known: .*\blocal, modal\b"),
        ("token_server", "../vllm", "token server '../vllm' is unknown; known: sglang, vllm"),
    ],
)
def test_a_name_that_leads_nowhere_says_what_to_do(kind: str, name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        extensions.load(kind, name)


@pytest.mark.parametrize("named", [{"env": "theirs"}, {"agent": {"kind": "theirs"}}])
async def test_a_worker_imports_a_plugin_only_if_its_operator_lets_it(
    named: dict[str, object], install: Install
) -> None:
    points = {kind: {"theirs": "theirs:TOOL"} for kind in ("env", "agent")}
    install("theirs", {"theirs.py": TOOL}, points)
    with pytest.raises(EnvBug, match=r"'theirs'.*HERMES_QUEUE_WORKER_IMPORTS"):
        await import_named(make_job(**named), allowed="mypkg")
    assert "theirs" not in sys.modules
    await import_named(make_job(**named), allowed="theirs")
    assert "theirs" in sys.modules


def test_the_command_lists_ours_and_theirs_and_what_is_wrong(install: Install) -> None:
    points = {"tool": {"listen": "theirs:TOOL", "bad": "theirs:BAD"}}
    install("their-tools", {"theirs.py": TOOL}, points)
    shown = CliRunner().invoke(cli, ["plugins", "tool", "--json"])
    found = {each["name"]: each for each in map(json.loads, shown.stdout.splitlines())}
    assert found["terminal"]["origin"] == "core"
    assert found["listen"] == {
        "kind": "tool",
        "name": "listen",
        "origin": "their-tools 1.0",
        "target": "theirs:TOOL",
        "error": "",
    }
    assert "AttributeError" in found["bad"]["error"]
    assert found["bad"]["error"] in shown.stderr
    assert shown.exit_code == 1


def test_the_command_succeeds_where_all_can_be_used() -> None:
    shown = CliRunner().invoke(cli, ["plugins"])
    assert shown.exit_code == 0, shown.output
    assert "token_server  vllm" in shown.stdout


def test_a_start_reads_no_plugins() -> None:
    code = "import workers.trajectory, producers.base, hermes_queue.cli"
    reads = "from hermes_queue.plugins import installed as i; print(i.cache_info().misses)"
    command = [sys.executable, "-c", f"{code}; {reads}"]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert shown.stdout == "0\n"


def test_nothing_else_looks_for_extensions() -> None:
    """A second way would be one more to learn, and would not refuse what this one refuses."""
    search = re.compile(
        r"^(?:from \S+ import .*|.*importlib(?:\.metadata)?\.|.*pkgutil\.)"
        r"\b(?:import_module|entry_points|iter_modules)\b",
        re.MULTILINE,
    )
    found = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if search.search(path.read_text(encoding="utf-8"))
    }
    of_plugins = {path for path in found if path.startswith("hermes_plugins/")}
    assert of_plugins <= {
        "hermes_plugins/trainers/prime_rl.py",  # a trainer, when it is used
        "hermes_plugins/trainers/verl.py",  # the same
        "hermes_plugins/trainers/versions.py",  # what an adapter needs of its trainer
    }
    assert found - of_plugins == {
        "hermes_queue/__init__.py",  # public names on first use
        "hermes_queue/agent/registry.py",  # a library, early and in a thread
        "hermes_queue/cli/declared.py",  # commands on first use
        "hermes_queue/extensions.py",
        "hermes_queue/plugins.py",
        "hermes_queue/sandbox/host/isolation.py",  # a wheel that may be missing
        "workers/imports.py",  # what `extensions` will import, in a thread
    }


def test_the_page_has_a_section_for_each_kind() -> None:
    page = (ROOT / "docs" / "extensions.md").read_text(encoding="utf-8")
    for kind in KINDS.values():
        assert f"`{kind.attribute}`" in page
