"""The documentation names only what exists."""

from __future__ import annotations

import io
import json
import re
import runpy
import tomllib
from pathlib import Path

import pytest
from pages import PAGES, ROOT, blocks, page_id, prose

from hermes_queue import errors, extensions
from hermes_queue.models import ScoredTrajectory
from hermes_queue.settings import sections
from producers.run.progress import ResultRow, console, print_table

GENERATED = ROOT / "docs" / "configuration.md"
FROM_CODE = {"CHANGELOG.md", "docs/cli.md", "docs/configuration.md"}
AVOIDED = re.compile(
    r"\b([Tt]old|[Ll]ikewise|[Ss]o (?:much|many)|[Ww]hat bec(?:omes|ame) of|(?:is|are) none)\b"
)
"""Words of a dialect: name the thing, and use a verb of the field (reported, released, counted)."""
PRODUCERS = sorted(
    path.stem for path in (ROOT / "producers").glob("*.py") if '== "__main__"' in path.read_text()
)


def slugs(path: Path) -> set[str]:
    """Anchors of the page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_internal_links_resolve(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)\s]+)\)", page.read_text(encoding="utf-8"))
    for link in links:
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in slugs(target), link


def test_the_start_page_links_every_other() -> None:
    start = ROOT / "docs" / "index.md"
    links = set(re.findall(r"\]\(([\w-]+\.md)[)#]", start.read_text(encoding="utf-8")))
    assert {path.name for path in start.parent.glob("*.md")} - {start.name} == links


def test_the_tools_that_an_env_can_name_are_listed() -> None:
    page = (ROOT / "docs" / "extensions.md").read_text(encoding="utf-8")
    [listed] = re.findall(r"The tools that come with hermes-queue are (.*?)\.\n", page, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == set(extensions.own("tool"))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_named_in_the_text_exist(page: Path) -> None:
    folders = "hermes_queue|hermes_plugins|workers|producers|envs|tests|docs|deploy"
    pattern = rf"`((?:{folders})/[\w./-]+)`"
    for name in re.findall(pattern, page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docker-compose.yml"], ids=page_id)
def test_variables_named_in_the_text_are_settings(page: Path) -> None:
    known = {
        f"{section.model_config.get('env_prefix', '')}{name}".upper()
        for section in sections()
        for name in section.model_fields
    }
    named = set(re.findall(r"HERMES_QUEUE_[A-Z0-9_]*[A-Z0-9]", page.read_text(encoding="utf-8")))
    assert named - known == set()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page_id(page) not in FROM_CODE], ids=page_id
)
def test_sentences_of_a_page_use_the_words_of_the_field(page: Path) -> None:
    text = re.sub(r"^\|.*$", "", prose(page), flags=re.MULTILINE)  # tables may come from code
    assert AVOIDED.findall(text) == []


@pytest.mark.parametrize("name", PRODUCERS)
def test_every_producer_is_documented(name: str) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert f"producers.{name}" in text or f"`{name}`" in text


def test_the_table_of_extras_has_each_and_says_what_all_is_made_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.*) \|$", page, re.MULTILINE))
    assert {name for cell in rows for name in re.findall(r"\w+", cell)} == set(extras)
    [every] = extras["all"]
    within, _, without = rows["`all`"].partition("; not")
    assert sorted(re.findall(r"`(\w+)`", within)) == sorted(re.findall(r"\w+", every)[2:])
    assert set(re.findall(r"`(\w+)`", without)) | set(re.findall(r"\w+", every)) >= (
        set(extras) - {"all"}
    )


def test_extras_named_in_the_documentation_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for page in PAGES:
        for group in re.findall(
            r"(?:hermes-queue|'\.)\[([\w,]+)\]", page.read_text(encoding="utf-8")
        ):
            assert set(group.split(",")) <= set(extras), page


def test_the_exit_codes_are_listed() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    section = page.partition("## Exit codes")[2].partition("\n## ")[0]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}
    assert listed == {0} | {
        value for name, value in vars(errors).items() if name.startswith("EXIT_")
    }


def test_every_error_has_its_section_under_troubleshooting() -> None:
    headings = slugs(ROOT / "docs" / "troubleshooting.md")
    classes = {
        name.lower()
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert classes <= headings


def test_messages_under_troubleshooting_are_ones_that_we_print() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \|", page.partition("## Messages")[2], re.MULTILINE)
    quoted = {text for row in rows for text in re.findall(r"`([^`]{9,})`", row)}
    source = "".join(
        path.read_text(encoding="utf-8")
        for package in ("hermes_queue", "workers", "producers", "envs", "hermes_plugins")
        for path in (ROOT / package).rglob("*.py")
    )
    joined = re.sub(r'"\s*f?"', "", source)  # a message may go over several lines
    foreign = {"No space left on device"}  # the kernel's
    assert {text for text in quoted if text not in joined} <= foreign


def test_configuration_page_is_what_the_settings_render() -> None:
    render = runpy.run_path(str(ROOT / "docs" / "generate_configuration.py"))["render"]
    assert GENERATED.read_text(encoding="utf-8") == render(), "stale: run `make docs`"


def test_tables_are_what_the_code_renders() -> None:
    generator = runpy.run_path(str(ROOT / "docs" / "generate_tables.py"))
    for page in generator["pages"]():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert text == generator["render"](page, text), f"{page} is stale: run `make docs`"


def test_every_setting_has_its_line_once() -> None:
    text = GENERATED.read_text(encoding="utf-8")
    for section in sections():
        prefix = section.model_config.get("env_prefix", "")
        for name in section.model_fields:
            assert text.upper().count(f"| `{prefix}{name}` |".upper()) == 1, name


def test_the_quickstart_shows_what_the_command_prints() -> None:
    shown = blocks(ROOT / "docs" / "quickstart.md", "text")[0]
    lines = [line.rstrip() for line in shown.text.splitlines()]
    rows = [
        ResultRow(id_, int(sample), stop, float(score), int(turns), float(seconds), "")
        for id_, sample, stop, score, turns, seconds in re.findall(
            r"^(pypi__\S+) +(\d+) +(\w+) +(\d+) +(\d+) +([\d.]+)$", shown.text, re.MULTILINE
        )
    ]
    printed = io.StringIO()
    print_table(rows, console(printed))
    table = [line.rstrip() for line in printed.getvalue().splitlines()]
    assert len(rows) == 2
    assert lines[lines.index(table[0]) :][: len(table)] == table


def test_the_record_in_the_quickstart_has_fields_that_records_have() -> None:
    [record] = blocks(ROOT / "docs" / "quickstart.md", "json")
    assert set(json.loads(record.text)) <= set(ScoredTrajectory.model_fields)


def test_changelog_knows_the_current_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


LUA = ROOT / "hermes_queue" / "keyspace" / "lua"
QUEUED = ("queued", "running")
BEGINS = re.compile(r"'state', '(queued|running)'")


def script_text(name: str) -> str:
    """A script with its parts: the files in the folder of its name."""
    paths = [LUA / f"{name}.lua", *sorted((LUA / name).glob("*.lua"))]
    return "".join(path.read_text(encoding="utf-8") for path in paths)


def test_every_change_of_state_in_the_diagram_is_made_by_the_script_that_it_names() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^    \S+ --> (\w+): (\w+)", page, re.MULTILINE)
    assert {state for state, _ in drawn} >= {"queued", "running", "final", "surplus", "cancelled"}
    for state, script in drawn:
        assert f"'{state}'" in script_text(script), (script, state)
    beginning = {path.stem for path in LUA.glob("*.lua") if BEGINS.search(script_text(path.stem))}
    # `publish` queues other samples: refills
    assert beginning - {"publish"} == {name for state, name in drawn if state in QUEUED}
