"""docs/logging.md lists the actions that the core logs, a plugin's page those of the plugin."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_trees import ROOT, modules, nodes

from hermes_queue.settings import LogSettings
from hermes_queue.telemetry import logs
from hermes_queue.telemetry.scrubbing import Scrubber

pytestmark = pytest.mark.xdist_group("sources")
"""One process parses all modules."""
DOCS = ROOT / "docs"
PLUGINS = ROOT / "hermes_plugins"
NAMES = sorted(path.parent.name for path in PLUGINS.glob("*/__init__.py"))
LEVELS = {"log", "info", "warning", "error", "exception", "critical"}


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    for path in modules():
        for node in nodes(path):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "logger"
                and node.func.attr in LEVELS
            ):
                yield f"{path.relative_to(ROOT).as_posix()}:{node.lineno}", node


def actions_in_code(plugin: str | None = None) -> set[str]:
    """Every value of an "action" key in a plugin, or in the core.

    `<name>` stands for what is only known at run time.
    """
    found = set()
    for path in modules():
        if path.is_relative_to(PLUGINS / (plugin or "")) != bool(plugin):
            continue
        for node in nodes(path):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "action":
                        found.add(spelled(value))
    return found


def spelled(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    assert isinstance(value, ast.JoinedStr), ast.unparse(value)
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else f"<{ast.unparse(part.value)}>"  # type: ignore[attr-defined]
        for part in value.values
    )


def listed(page: Path) -> set[str]:
    """The rows below the heading "Logged actions"."""
    section = (
        page.read_text(encoding="utf-8").partition("\n## Logged actions\n")[2].partition("\n## ")[0]
    )
    found = re.findall(r"^\| `([a-z_<>]+)` \|", section, re.MULTILINE)
    assert len(found) == len(set(found))
    return set(found)


def test_the_page_lists_every_action_of_the_core_and_nothing_else() -> None:
    assert listed(DOCS / "logging.md") == actions_in_code()


@pytest.mark.parametrize("name", NAMES)
def test_a_plugins_page_lists_the_actions_that_only_the_plugin_logs(name: str) -> None:
    assert listed(DOCS / "plugins" / f"{name}.md") == actions_in_code(name) - actions_in_code()


def test_every_log_line_has_an_action() -> None:
    without = [
        place for place, call in log_calls() if not any(k.arg == "extra" for k in call.keywords)
    ]
    assert without == []


def line(message: str, *args: object, **extra: object) -> dict[str, object]:
    record = logging.getLogger("x").makeRecord(
        "x", logging.WARNING, "f.py", 1, message, args, None, extra=extra
    )
    text = logs.JsonFormatter(Scrubber(["the-secret!"])).format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_json_line_has_the_ids_of_what_it_is_about() -> None:
    with logs.about("run.digest.0"):
        event = line("two\nlines %s", 1, action="retry")
    assert (event["trajectory_id"], event["run_id"]) == ("run.digest.0", "run")
    assert (event["action"], event["level"], event["message"]) == (
        "retry",
        "warning",
        "two\nlines 1",
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(event["ts"]))


def test_what_a_line_says_itself_wins_over_its_context() -> None:
    with logs.about("run.digest.0"):
        assert line("x", trajectory_id="other.digest.1")["run_id"] == "other"
        assert line("x", run_id="named")["run_id"] == "named"
    assert "trajectory_id" not in line("x")


def test_secrets_in_message_extra_and_json_escapes_are_replaced() -> None:
    event = line('a "the-secret!" %s', "the-secret!", path="/the-secret!/x", data={"big": "x"})
    assert event["message"] == 'a "***" ***'
    assert event["path"] == "/***/x"
    assert "data" not in event


@pytest.mark.parametrize("text", ["text", "json"])
def test_installing_twice_changes_nothing(text: str) -> None:
    logger = logging.getLogger(f"test.{text}")
    logger.addHandler(logging.StreamHandler())
    settings = LogSettings(format=text)
    logs.install(logger, settings)
    first = logger.handlers[0].formatter
    logs.install(logger, settings)
    assert logger.handlers[0].formatter is first
