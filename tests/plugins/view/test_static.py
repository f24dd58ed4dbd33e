"""The files of the viewer's page: what must never be in them, and that they are shipped."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "hermes_plugins/view/static"
VENDOR = STATIC / "vendor"
OWN = sorted(path for path in STATIC.rglob("*.js") if path.parent != VENDOR)
NAMES = [path.relative_to(STATIC).as_posix() for path in OWN]

FORBIDDEN = {
    "makes markup of a text": r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML"
    r"|document\.write|DOMParser|createContextualFragment|srcdoc|setHTML",
    "makes code of a text": r"\beval\b|\bFunction\s*\(|setTimeout\(\s*[\"'`]|javascript:",
    "keeps data in the browser": r"sessionStorage|indexedDB|document\.cookie|caches\.|serviceW",
    "makes a policy for trusted types": r"trustedTypes|createPolicy",
    "asks another server": r"https?://|//[a-z0-9-]+\.[a-z]",
}
MOST_LINES = 400
IMPORT = re.compile(r"""(?:\bfrom\s*|\bimport\s*\(?\s*)["']([^"']+)["']""")


def code(path: Path) -> str:
    """A module without its comments."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"(?m)(?:^|\s)// .*$", "", text)


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_module_does_what_is_forbidden(what: str) -> None:
    found = {
        name: re.findall(FORBIDDEN[what], code(path)) for name, path in zip(NAMES, OWN, strict=True)
    }
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize(
    "line",
    [
        "element.innerHTML = text;",
        "html`<p dangerouslySetInnerHTML=${{ __html: text }} />`",
        "eval(text)",
        'new Function("return 1")',
        'fetch("https://elsewhere.example/")',
    ],
)
def test_the_lint_finds_what_it_is_for(line: str, tmp_path: Path) -> None:
    (tmp_path / "bad.js").write_text(line)
    text = code(tmp_path / "bad.js")
    assert any(re.search(pattern, text) for pattern in FORBIDDEN.values())


def test_a_title_is_written_where_its_text_is_made_harmless() -> None:
    using = {name for name, path in zip(NAMES, OWN, strict=True) if "document.title" in code(path)}
    assert using == {"show.js"}


def test_only_the_theme_and_the_columns_are_kept_in_the_browser() -> None:
    using = {name for name, path in zip(NAMES, OWN, strict=True) if "localStorage" in code(path)}
    assert using == {"core.js"}
    kept = {key for path in OWN for key in re.findall(r'\bkept\("(\w+)"', code(path))}
    assert kept == {"theme", "columns"}


def test_modules_are_short_and_say_what_they_are() -> None:
    lines = {name: path.read_text().splitlines() for name, path in zip(NAMES, OWN, strict=True)}
    assert {name: len(each) for name, each in lines.items() if len(each) >= MOST_LINES} == {}
    assert {name for name, each in lines.items() if not each[0].startswith("/**")} == set()


def test_every_import_names_a_file_that_is_there() -> None:
    for path in [*OWN, *sorted(VENDOR.glob("*.js"))]:
        for reference in IMPORT.findall(code(path)):
            assert reference.startswith("."), f"{path.name} imports {reference}"
            assert (path.parent / reference).resolve().is_relative_to(STATIC)
            assert (path.parent / reference).is_file(), f"{path.name} imports {reference}"


def test_the_page_has_no_script_or_style_of_its_own() -> None:
    text = (STATIC / "index.html").read_text()
    assert re.findall(r"<script[^>]*>(?!</script>)", text) == []
    assert "<style" not in text
    assert not re.search(r"\son\w+=|\sstyle=", text)
    for name in re.findall(r'(?:src|href)="/static/([^"]+)"', text):
        assert (STATIC / name).is_file()


def test_foreign_files_are_those_that_were_published() -> None:
    readme = (VENDOR / "README.md").read_text()
    digests = re.findall(r"^([0-9a-f]{128})  (\S+)$", readme.partition("as published")[2], re.M)
    assert {name for _, name in digests} == {p.name for p in VENDOR.iterdir()} - {"README.md"}
    for digest, name in digests:
        content = (VENDOR / name).read_bytes()
        if name == "hooks.js":
            assert content.count(b'from"./preact.js"') == 1
            content = content.replace(b'from"./preact.js"', b'from"preact"')
        assert hashlib.sha512(content).hexdigest() == digest, name


@pytest.mark.parametrize("builder", [WheelBuilder, SdistBuilder], ids=["wheel", "sdist"])
def test_the_page_and_its_licences_are_shipped(builder: type) -> None:
    shipped = {each.relative_path for each in builder(str(ROOT)).recurse_included_files()}
    ours = {p.relative_to(ROOT).as_posix() for p in STATIC.rglob("*") if p.is_file()}
    assert {"LICENSE.preact", "LICENSE.htm", "main.js"} <= {Path(name).name for name in ours}
    assert ours - shipped == set()


def test_the_tool_that_checks_for_accessibility_is_not_shipped() -> None:
    shipped = {each.relative_path for each in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert not [name for name in shipped if "axe" in Path(name).name]
