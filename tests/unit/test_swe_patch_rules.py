"""Which of an agent's changes count."""

from __future__ import annotations

import pytest
from sample_package import FILES, bug_patch, make_row

from envs.swe.item import Item
from envs.swe.patch import Rules
from envs.swe.repository import Change

RULES = Rules(
    Item.model_validate(make_row(patch=bug_patch())),
    frozenset(FILES) | {"pkg/testing/__init__.py", "scripts/run.py"},
)
FILE, GONE = "100644", "000000"


def change(path: str, mode: str = FILE) -> Change:
    return Change("000000", mode, "0" * 40, path)


@pytest.mark.parametrize(
    "path",
    [
        "sample/core.py",
        "sample/new.py",
        "sample/deep/er/new.py",
        "sample/data.json",
        "scripts/run.py",
        "sample/contest.py",
        "sample/latest.py",
    ],
)
def test_the_packages_own_files_count(path: str) -> None:
    assert RULES.allow(change(path))


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_label.py",
        "tests/test_clamp.py",
        "tests/data.txt",
        "sample/tests/test_x.py",
        "sample/conftest.py",
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        "tox.ini",
        "setup.cfg",
        "setup.py",
        "pyproject.toml",
        ".coveragerc",
        ".gitattributes",
        "sample/.gitattributes",
        "sitecustomize.py",
        "sample/usercustomize.py",
        "pytest.py",
        "new/__init__.py",
        "scripts/new.py",
        "sample/fast.so",
        "sample/x.pth",
    ],
)
def test_tests_settings_and_files_outside_packages_do_not(path: str) -> None:
    assert not RULES.allow(change(path))


@pytest.mark.parametrize("mode", ["120000", "160000"])
def test_links_and_nested_repositories_do_not(mode: str) -> None:
    assert not RULES.allow(change("sample/core.py", mode))


def test_deleting_a_source_file_counts() -> None:
    assert RULES.allow(change("sample/core.py", GONE))


def test_the_file_with_the_bug_counts_wherever_it_lies() -> None:
    patch = bug_patch().replace("sample/core.py", "pkg/testing/core.py")
    rules = Rules(Item.model_validate(make_row(patch=patch)), frozenset(FILES))
    assert rules.allow(change("pkg/testing/core.py"))
    assert not rules.allow(change("pkg/testing/other.py"))


def test_a_raw_diff_is_read_with_any_bytes_in_its_paths() -> None:
    raw = b":100644 100755 " + b"1" * 40 + b" " + b"2" * 40 + b" M\0a \n\xff.py\0"
    [entry] = Change.parse(raw)
    assert (entry.new_mode, entry.oid, entry.path) == ("100755", "2" * 40, "a \n\udcff.py")


@pytest.mark.parametrize("raw", [b"no diff", b"x\0", b"a b c d e f\0path\0"])
def test_what_is_no_raw_diff_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Change.parse(raw)
