"""Code blocks in the documentation are what they say: whole, and without a wrong name in them.

That they also run is tested in tests/results/test_documented_examples.py and
tests/e2e/test_own_pieces.py.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from pages import PAGES, Block, all_blocks, blocks, page_id

TRAINERS = {"datasets", "peft", "skyrl", "tinker", "torch", "transformers", "trl"}
"""Packages that an environment of trainers has, see docs/plugins/trainers.md."""
LANGUAGES = {"sh", "python", "text", "json", "jsonl", "toml", "yaml", "ini", "promql", "mermaid"}
PYTHON = all_blocks("python")


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_block_names_its_language(page: Path) -> None:
    assert {str(block) for block in blocks(page) if block.language not in LANGUAGES} == set()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_blocks_in_lists_are_indented_by_four(page: Path) -> None:
    """With three, GitHub shows them in the list, the site ends the list."""
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^(?: {1,3}| {5,7})```.*", text, re.MULTILINE) == []


def unresolved(block: Block) -> list[str]:
    """Imports of a Python block that do not exist."""
    files = {
        (other.says("file") or "").removesuffix(".py") for other in blocks(block.page, "python")
    }
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(block.text, str(block), "exec", flags)
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            ours = [a.name for a in node.names if a.name.partition(".")[0] not in TRAINERS]
            wrong += [name for name in ours if importlib.util.find_spec(name) is None]
        if (
            isinstance(node, ast.ImportFrom)
            and node.module not in files
            and str(node.module).partition(".")[0] not in TRAINERS
        ):
            module = importlib.import_module(str(node.module))
            wrong += [
                alias.name
                for alias in node.names
                if not hasattr(module, alias.name)
                and importlib.util.find_spec(f"{node.module}.{alias.name}") is None
            ]
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "hermes_queue"
            and not hasattr(importlib.import_module("hermes_queue"), node.attr)
        ):
            wrong.append(node.attr)
    return wrong


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles_and_what_it_imports_exists(block: Block) -> None:
    assert unresolved(block) == []


def test_python_uses_no_name_that_is_not_defined(tmp_path: Path) -> None:
    whole = [block for block in PYTHON if not block.says("not run")]
    for number, block in enumerate(whole):
        (tmp_path / f"block_{number}.py").write_text(f"# {block}\n{block.text}", encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache"]
    rules = ["--select", "F,E9", "--ignore", "F704,F706"]
    done = subprocess.run([*ruff, *rules, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_wrong_block_is_found() -> None:
    for text in ("import hermes_queueing", "import hermes_queue\nhermes_queue.consum('a')"):
        assert unresolved(Block(PAGES[0], 1, "python", "", text))
    with pytest.raises(SyntaxError):
        unresolved(Block(PAGES[0], 1, "python", "", "for x in:\n    pass"))


@pytest.mark.parametrize("block", all_blocks("yaml", "toml", "json", "jsonl"), ids=str)
def test_data_is_well_formed(block: Block) -> None:
    if block.language == "yaml":
        assert list(yaml.safe_load_all(block.text))
    elif block.language == "toml":
        assert tomllib.loads(block.text)
    elif block.language == "json":
        json.loads(block.text)
    else:
        assert [json.loads(line) for line in block.text.splitlines()]
