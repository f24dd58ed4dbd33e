"""One HTML file with trajectories: its script, its data, its policy."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from records import make_job, make_record

from hermes_plugins.view.assets import DIRECTORY
from hermes_plugins.view.filed.document import MARK, BundleError, as_data, bundled, document
from hermes_plugins.view.index.index import Index
from hermes_plugins.view.sources.opening import index_path, open_sources
from hermes_queue.cli import cli
from hermes_queue.models import Message

OUR_MODULES = {
    path.relative_to(DIRECTORY).as_posix(): path.read_text() for path in DIRECTORY.rglob("*.js")
}
ATTACKS = (
    "</script><script>window.ran = 1</script>",
    "<!-- <script>",
    "]]>--!></SCRIPT\t>",
    "\u2028alert(1)\u2029",
    "\x00\x1b[2J\u202e",
    "&lt;/script&gt;",
)


# --- the script --------------------------------------------------------------------------------


def test_modules_stand_in_the_order_in_which_they_need_each_other():
    script = bundled(
        {
            "main.js": 'import { f as g } from "./a/b.js";\nimport d from "./d.js";\ng(d);',
            "a/b.js": 'import{x as n}from"../c.js";\nexport function f() { return n; }',
            "c.js": "const y = 1;export{y as x};\n//# sourceMappingURL=c.map\n",
            "d.js": "var a = 1;export default function(){}",
        },
        "main.js",
    )
    places = [
        script.index(f'__modules["{name}"] =') for name in ("c.js", "a/b.js", "d.js", "main.js")
    ]
    assert places == sorted(places)
    assert 'const { x: n } = __modules["c.js"];' in script
    assert 'const { f: g } = __modules["a/b.js"];' in script
    assert "return { x: y };" in script
    assert "return { default: __default };" in script
    assert "sourceMappingURL" not in script


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"m.js": 'import { a } from "./gone.js";'}, "gone.js is missing"),
        ({"m.js": 'import { a } from "./n.js";', "n.js": 'import { b } from "./m.js";'}, "imports"),
        ({"m.js": 'import * as all from "./m.js";'}, "cannot be bundled"),
        ({"m.js": 'const page = import("./n.js");'}, "cannot be bundled"),
        ({"m.js": 'export * from "./n.js";'}, "cannot be bundled"),
        ({"m.js": 'import "./n.js";'}, "cannot be bundled"),
        ({"m.js": 'const end = "</script>";'}, "script element"),
        ({"m.js": 'const begin = "<!--";'}, "script element"),
    ],
)
def test_what_cannot_be_one_script_is_refused(files, message):
    with pytest.raises(BundleError, match=re.escape(message)):
        bundled(files, "m.js")


def test_our_page_becomes_one_script_without_imports_and_without_what_acts():
    script = bundled(OUR_MODULES, "filed.js")
    assert not re.search(r"(?m)^\s*(?:import|export)\b", script)
    assert 'from"./' not in script
    for name in ("vendor/preact.js", "core.js", "show.js", "pages/trajectory.js", "pages/group.js"):
        assert script.count(f'__modules["{name}"] =') == 1
    assert '__modules["actions.js"]' not in script
    assert '__modules["main.js"]' not in script


# --- the data ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ATTACKS)
def test_no_text_leaves_the_data_element_and_all_of_it_is_there(text):
    data = as_data({text: [text]})
    assert not re.search("[<>&\u2028\u2029]", data)
    assert json.loads(data) == {text: [text]}


# --- the file ----------------------------------------------------------------------------------


class Elements(HTMLParser):
    """Names and attributes of all elements, and what is in scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.texts.append("")
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[-1] += data

    def of(self, name: str) -> list[tuple[dict[str, str | None], str]]:
        pairs = zip(self.found, self.texts, strict=True)
        return [(given, text) for (tag, given), text in pairs if tag == name]


def export(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["export", "--format", "html", *map(str, arguments)])


def parsed(path: Path) -> tuple[Elements, dict[str, Any]]:
    elements = Elements()
    elements.feed(path.read_text(encoding="utf-8"))
    [(_, data), _] = elements.of("script")
    return elements, json.loads(data)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("filed") / "in.jsonl"
    records = [make_record(make_job("run", "one", n, 2), float(n)) for n in range(2)]
    hostile = make_record(make_job("other", "two", 0, 1), 1.0)
    texts = (*ATTACKS, "a token: ghp_" + "a1B2" * 9)
    messages = tuple(Message(role="user", content=text) for text in texts)
    report = {"reason": ATTACKS[0], "patch": ATTACKS[0], ATTACKS[1]: ATTACKS[1]}
    hostile = hostile.model_copy(update={"messages": messages, "report": report})
    path.write_text("".join(each.to_json() + "\n" for each in (*records, hostile)))
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path / "cache"))


def test_the_file_has_two_scripts_and_a_policy_with_the_hash_of_the_one_that_runs(source, tmp_path):
    out = tmp_path / "out.html"
    done = export("--from", source, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    elements, answers = parsed(out)
    (data, _), (module, script) = elements.of("script")
    assert (data["type"], module) == ("application/json", {"type": "module"})
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    [(policy, _)] = [each for each in elements.of("meta") if "http-equiv" in each[0]]
    given = str(policy["content"])
    assert f"script-src 'sha256-{digest}';" in given
    assert given.startswith("default-src 'none';")
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in given
    assert "unsafe" not in given
    addresses = [a for _, each in elements.found for a in (each.get("src"), each.get("href")) if a]
    assert addresses == ["data:,"]
    assert {"/api/filed"} | {f"/api/t/{row['id']}" for row in answers["/api/filed"]["rows"]} <= set(
        answers
    )


def test_secrets_that_a_record_still_has_are_taken_out(source, tmp_path):
    out = tmp_path / "out.html"
    assert export("--from", source, "--run", "other", "--out", out).exit_code == 0
    assert "ghp_a1B2" not in out.read_text()
    _, answers = parsed(out)
    [trajectory] = [
        answers[path] for path in answers if path.startswith("/api/t/") and "row" in answers[path]
    ]
    assert trajectory["messages"][0]["content"]["text"] == ATTACKS[0]


def test_a_group_or_a_trajectory_is_what_the_file_opens_with(source, tmp_path):
    first = make_job("run", "one", 0, 2)
    out = tmp_path / "out.html"
    assert export(first.group_id, "--from", source, "--out", out).exit_code == 0
    _, answers = parsed(out)
    path = f"/group/{first.group_id}"
    assert answers["/api/filed"]["begin"] == path
    assert len(answers[f"/api/groups/{first.group_id}/compare"]["samples"]) == 2
    assert f"/api/groups/{first.group_id}/compare?reference={first.trajectory_id}" in answers
    assert export(first.trajectory_id, "--from", source, "--out", out).exit_code == 0
    _, answers = parsed(out)
    assert answers["/api/filed"]["begin"] == f"/t/{first.trajectory_id}"


def test_a_part_of_a_group_is_not_shown_as_the_group(source, tmp_path):
    out = tmp_path / "out.html"
    assert export("--from", source, "--filter", "run:run score:1", "--out", out).exit_code == 0
    _, answers = parsed(out)
    assert len(answers["/api/filed"]["rows"]) == 1
    assert answers["/api/filed"]["groups"] == []
    assert [path for path in answers if path.startswith("/api/groups/")] == []


def test_labels_and_findings_are_shown_in_it(source, tmp_path):
    name = make_job("run", "one", 0, 2).trajectory_id
    reviews, findings = tmp_path / "reviews.jsonl", tmp_path / "findings.jsonl"
    reviews.write_text(json.dumps({"trajectory_id": name, "label": "fine", "at": 1.0}) + "\n")
    finding = {"trajectory_id": name, "label": "odd", "by": "judge", "note": "ghp_" + "a1B2" * 9}
    findings.write_text(json.dumps(finding) + "\n")
    out = tmp_path / "out.html"
    more = ("--reviews", reviews, "--findings", findings, "--filter", "reviewed:fine")
    done = export("--from", source, *more, "--out", out)
    assert done.exit_code == 0, done.output
    _, answers = parsed(out)
    found = answers[f"/api/t/{name}"]
    assert (found["review"]["label"], found["findings"][0]["label"]) == ("fine", "odd")
    assert "ghp_a1B2" not in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say what to write"),
        (("--run", "nobody"), "no trajectory meets this"),
        (("nobody",), "no trajectory and no group"),
        (("x", "--run", "run"), "give ids, or"),
        (("--filter", "scroe:1"), "no field"),
    ],
)
def test_what_cannot_be_written_is_an_error_that_says_why(source, tmp_path, arguments, message):
    given = ("--from", source) if arguments else ("--archive-only",)
    done = export(*arguments, *given, "--out", tmp_path / "out.html")
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "out.html").exists()


def test_each_answer_is_written_before_the_next_one_is_made():
    made = []

    def answers() -> Iterator[tuple[str, Any]]:
        for number in range(3):
            made.append(number)
            yield f"/{number}", "</script>"

    parts = document(answers(), "x")
    assert next(parts).startswith(MARK)
    assert [next(parts), next(parts)] == [
        '{"/0":"\\u003c/script\\u003e"',
        ',"/1":"\\u003c/script\\u003e"',
    ]
    assert made == [0, 1]


def test_a_file_that_would_be_too_large_leaves_the_one_that_is_there(source, tmp_path, monkeypatch):
    out = tmp_path / "out.html"
    assert export("--from", source, "--out", out).exit_code == 0
    before = out.read_bytes()
    monkeypatch.setattr("hermes_plugins.view.filed.document.FILE_BYTES_MAX", 5000)
    done = export("--from", source, "--out", out)
    assert (done.exit_code, out.read_bytes()) == (2, before)
    assert "choose fewer trajectories" in done.stderr
    assert [each.name for each in tmp_path.glob("*out.html*")] == ["out.html"]


def test_only_a_file_of_this_kind_is_replaced(source, tmp_path):
    out = tmp_path / "out.html"
    out.write_text("my notes")
    done = export("--from", source, "--out", out)
    assert (done.exit_code, out.read_text()) == (2, "my notes")
    out.write_text(MARK)
    assert export("--from", source, "--out", out).exit_code == 0


def test_the_help_of_the_format_is_its_own():
    said = export("--help").output
    assert "--group" in said
    assert "--min-score" not in said


def test_an_index_that_a_viewer_has_open_is_left_to_it(source, tmp_path):
    sources = open_sources([source])
    out = tmp_path / "out.html"
    with closing(Index(index_path(sources), sources)) as index:  # and nobody looks
        done = export("--from", source, "--out", out)
        assert index.count() == 0
    assert (done.exit_code, "3 trajectories" in done.stderr) == (0, True)
