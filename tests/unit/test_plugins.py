"""Optional features stand in folders of `hermes_plugins`, and the core knows none of them."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import plugin
import pytest
from click.testing import CliRunner
from source_trees import ROOT, code_lines

from hermes_queue import extensions
from hermes_queue.cli import cli
from hermes_queue.core import declared
from hermes_queue.errors import ConfigurationError
from hermes_queue.plugins import GROUP, Plugin, installed
from hermes_queue.settings import check_environment

FOLDER = ROOT / "hermes_plugins"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/__init__.py"))
CORE = ("hermes_queue", "workers", "producers", "envs")
Install = Callable[[str, str], None]


def plugin_of(name: str) -> Plugin:
    [found] = [each.plugin for each in installed() if each.plugin and each.plugin.name == name]
    return found


def sources(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.rglob("*.py"))


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_folder_is_a_plugin_of_its_name_and_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"][GROUP] == {n: f"hermes_plugins.{n}:PLUGIN" for n in NAMES}
    assert [each.error for each in installed() if each.is_ours and each.error] == []
    assert sorted(each.plugin.name for each in installed() if each.is_ours and each.plugin) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_plugin_has_its_tests_and_its_page(name: str) -> None:
    assert list((ROOT / "tests" / "plugins" / name).glob("test_*.py"))
    assert (ROOT / "docs" / "plugins" / f"{name}.md").is_file()


@pytest.mark.parametrize("name", NAMES)
def test_a_plugin_keeps_its_budget(name: str) -> None:
    spent = sum(code_lines(file.read_text(encoding="utf-8")) for file in sources(FOLDER / name))
    allowed = plugin_of(name).code_lines
    assert spent <= allowed, f"{name} has {spent} code lines of the {allowed} that it may"
    assert allowed <= spent * 1.2 + 30, f"{name} needs {spent} code lines, and may have {allowed}"


@pytest.mark.parametrize("name", NAMES)
def test_a_plugin_imports_those_that_it_says_it_needs(name: str) -> None:
    others = {
        module.split(".")[1]
        for file in sources(FOLDER / name)
        for module in imported(file)
        if module.startswith("hermes_plugins.") and not module.startswith(f"hermes_plugins.{name}.")
    }
    assert others - {name} == set(plugin_of(name).needs)


def test_the_core_names_no_plugin() -> None:
    """A producer's module may stand for one of a plugin, so that `python -m` finds it."""
    found = {
        file.relative_to(ROOT).as_posix()
        for package in CORE
        for file in (ROOT / package).rglob("*")
        if file.suffix in {".py", ".lua", ".js", ".sh"} and "data" not in file.parts
        if re.search(r"\bhermes_plugins\.", file.read_text(encoding="utf-8"))
    }
    aliases = {file for file in found if len((ROOT / file).read_text().splitlines()) <= 12}
    assert found - aliases == set()
    assert {file.partition("/")[0] for file in aliases} <= {"producers"}


def test_no_command_setting_or_extension_of_ours_has_two_owners() -> None:
    ours = [plugin for plugin in declared() if plugin.name in ("core", *NAMES)]
    commands = [words for each in ours for words in each.commands]
    sections = [target for each in ours for target in each.settings]
    named = [
        (kind, name) for each in ours for kind, names in each.extensions.items() for name in names
    ]
    for owned in (commands, sections, named):
        assert len(owned) == len(set(owned))


# --- plugins of others ----------------------------------------------------------------------

SECTION = """
from hermes_queue.plugins import Command, Plugin
from hermes_queue.settings.section import PREFIX, Section

class Theirs(Section, env_prefix=PREFIX + "THEIRS_"):
    depth: int = 3

import click

@click.command()
def greet():
    click.echo("hello")

PLUGIN = Plugin(
    name="theirs", purpose="Greets.", settings=("theirs:Theirs",),
    commands={"greet": Command("theirs:greet", "Greet.")},
)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a plugin whose declaration is in `theirs.py`."""
    with plugin.installing(tmp_path, monkeypatch):
        yield lambda name, source: plugin.install(
            tmp_path, name, {"theirs.py": source}, "theirs:PLUGIN"
        )


def test_a_plugins_commands_stand_in_the_list_and_run(install: Install) -> None:
    install("theirs", SECTION)
    assert "Greet." in CliRunner().invoke(cli, ["--help"]).output
    assert CliRunner().invoke(cli, ["greet"]).output == "hello\n"


def test_a_plugins_settings_are_known_and_checked(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_THEIRS_DEPTH", "4")
    with pytest.raises(ConfigurationError, match="HERMES_QUEUE_THEIRS_DEPTH is not a setting"):
        check_environment()
    install("theirs", SECTION)
    check_environment()
    monkeypatch.setenv("HERMES_QUEUE_THEIRS_DEPTH", "deep")
    with pytest.raises(ConfigurationError, match=r"HERMES_QUEUE_THEIRS_DEPTH: .* integer"):
        check_environment()


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise RuntimeError('no licence key')", "RuntimeError: no licence key"),
        ("PLUGIN = 7", "is a int, not a Plugin"),
        (
            "from hermes_queue.plugins import Plugin\n"
            "PLUGIN = Plugin(name='t', purpose='', extensions={'tols': {}})",
            "'tols' is no kind; kinds: env, tool",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named_and_spoils_nothing_else(
    install: Install, source: str, why: str
) -> None:
    install("their-tools", source)
    shown = CliRunner().invoke(cli, ["plugins"])
    assert shown.exit_code == 1
    assert "plugin their-tools 1.0: " in shown.output
    assert why in shown.output
    assert extensions.load("tool", "terminal").name == "terminal"
    with pytest.raises(ConfigurationError, match=re.escape(why)):
        extensions.load("tool", "listen")


@pytest.mark.parametrize("target", ["json", "json:", ":loads", "a b:c", "../x:Y"])
def test_a_target_is_written_as_module_and_attribute(target: str) -> None:
    with pytest.raises(ValueError, match=r"package\.module:ATTRIBUTE"):
        Plugin(name="t", purpose="", settings=(target,))


PAGE = """
import click
from hermes_queue.plugins import Command, Plugin

@click.command()
@click.option("--format", "kind")
def page(kind):
    click.echo(f"a {kind}")

COMMAND = Command("theirs:page", "Write a page.")
PLUGIN = Plugin(
    name="theirs", purpose="Pages.", commands={"export page": COMMAND, "export jsonl": COMMAND}
)
"""


def test_a_plugins_command_stands_in_for_a_format_but_not_for_one_of_ours(install: Install) -> None:
    install("theirs", PAGE)
    for flags in (["--format", "page"], ["--format=page"]):
        assert CliRunner().invoke(cli, ["export", *flags]).output == "a page\n"
    ours = CliRunner().invoke(cli, ["export", "--format", "jsonl"])
    assert "Missing option '--out'" in ours.output


def test_ours_come_before_a_command_of_theirs(install: Install) -> None:
    install("theirs", SECTION.replace('"greet": ', '"status": '))
    assert cli.commands.get("status") is None
    status = cli.get_command(click.Context(cli), "status")
    assert status is not None
    assert status.name == "status"
