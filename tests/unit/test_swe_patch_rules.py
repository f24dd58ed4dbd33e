"""Which of an agent's changes count."""

from __future__ import annotations

import pytest
from sample_package import FILES, bug_patch, make_row

from envs.swe.item import Item
from envs.swe.patch import (
    MAX_CHANGES,
    MAX_DEPTH,
    TEST_DIRECTORIES,
    TEST_MODULES,
    Rejected,
    Rules,
    sort_changes,
)
from envs.swe.repository import Change
from envs.swe_smith import ENV

RULES = Rules(
    Item.model_validate(make_row(patch=bug_patch())),
    frozenset(FILES) | {"pkg/testing/__init__.py", "scripts/run.py"},
)
FILE, GONE = "100644", "000000"


def change(path: str, mode: str = FILE) -> Change:
    return Change(mode, "0" * 40, path)


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
        "test-data/unit/check.test",
        "sample/testdata/x.json",
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
        "sample.egg-info/entry_points.txt",
        "src/sample.egg-info/PKG-INFO",
        "sample/zz-1.0.dist-info/METADATA",
        "sample/zz.egg-info",
        "sample/EGG-INFO/entry_points.txt",
        "sample/entry_points.txt",
        "sample/" + "d/" * 100 + "x.py",
    ],
)
def test_tests_settings_and_files_outside_packages_do_not(path: str) -> None:
    assert not RULES.allow(change(path))


@pytest.mark.parametrize("mode", ["120000", "160000"])
def test_links_and_nested_repositories_do_not(mode: str) -> None:
    assert not RULES.allow(change("sample/core.py", mode))


def test_what_the_hidden_tests_bring_is_theirs_unless_the_fix_changes_it() -> None:
    item = Item.model_validate(make_row(patch=bug_patch()))
    hidden = {"scripts/run.py", "sample/core.py"}
    rules = Rules(item, frozenset(FILES) | {"scripts/run.py"}, hidden=hidden)
    assert not rules.allow(change("scripts/run.py"))
    assert rules.allow(change("sample/core.py"))


def test_deleting_a_source_file_counts() -> None:
    assert RULES.allow(change("sample/core.py", GONE))


class Counting(str):
    """A path that counts how often a part of it is taken."""

    steps = 0

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        Counting.steps += 1
        head, middle, tail = super().rpartition(sep)
        return Counting(head), middle, tail


def test_a_deep_path_is_looked_at_once_and_only_so_far() -> None:
    for depth in (10, 60, 2_000):
        Counting.steps = 0
        RULES.allow(change(Counting("new/" + "d/" * depth + "x.py")))
        assert Counting.steps <= MAX_DEPTH + 2


def many(path: bytes) -> bytes:
    """A listing with more changes than count."""
    return (b":000000 100644 %s %s A\0%s\0" % (b"0" * 40, b"1" * 40, path)) * (MAX_CHANGES + 1)


def test_more_changes_than_anybody_makes_are_refused() -> None:
    with pytest.raises(Rejected) as rejected:
        sort_changes(RULES, many(b"sample/x.py"))
    assert rejected.value.reason == "too_large"


def test_only_changes_that_count_are_counted() -> None:
    kept, dropped = sort_changes(RULES, many(b"notes/x.txt"))
    assert (kept, len(dropped)) == ([], MAX_CHANGES + 1)


@pytest.mark.parametrize("name", [*TEST_DIRECTORIES, *TEST_MODULES])
def test_prompts_name_what_counts_as_a_test(name: str) -> None:
    path = f"sample/{name}/x.py" if name in TEST_DIRECTORIES else f"sample/{name}"
    assert not RULES.allow(change(path.replace("*", "x")))
    assert name in ENV.task(Item.model_validate(make_row(patch=bug_patch())))


@pytest.mark.parametrize("raw", [b"nonsense", b"a\0b\0c\0", b"\xff \0x\0"])
def test_a_listing_that_git_would_not_write_is_refused(raw: bytes) -> None:
    with pytest.raises(Rejected) as rejected:
        sort_changes(RULES, raw)
    assert rejected.value.reason == "malformed"


def test_the_file_with_the_bug_counts_wherever_it_lies() -> None:
    patch = bug_patch().replace("sample/core.py", "pkg/testing/core.py")
    rules = Rules(Item.model_validate(make_row(patch=patch)), frozenset(FILES))
    assert rules.allow(change("pkg/testing/core.py"))
    assert not rules.allow(change("pkg/testing/other.py"))


def rules_of(path: str, *others: str, top_level: tuple[str, ...] = ()) -> Rules:
    """Of a row whose bug is in the file `path`, which is not part of a regular package."""
    patch = bug_patch().replace("sample/core.py", path)
    item = Item.model_validate(make_row(patch=patch, environment={}))
    return Rules(item, frozenset({path, *others}), top_level)


@pytest.mark.parametrize(
    ("rules", "counting", "dropped"),
    [
        (
            rules_of("single.py", "setup.py"),
            ["single/__init__.py", "single/core.py", "_single.py"],
            ["other/__init__.py", "other/x.py", "pytest.py", "json.py", "data.txt", "conftest.py"],
        ),
        (
            rules_of("src/single.py"),
            ["src/single/__init__.py", "src/_single.py"],
            ["src/pluggy.py", "single.py", "_single.py"],
        ),
        (
            rules_of("ns/single.py"),
            ["ns/bounds.py", "ns/single/core.py", "ns/deep/x.py"],
            ["bounds.py", "nss/bounds.py", "ns/conftest.py"],
        ),
        (
            rules_of("src/ns/part/single.py"),
            ["src/ns/part/bounds.py", "src/ns/bounds.py"],
            ["src/bounds.py", "ns/bounds.py"],
        ),
        (
            rules_of("one.py", "two.py", "ns/x.py", "docs/x.py", top_level=("two", "ns", "gone")),
            ["two/__init__.py", "ns/y.py"],
            ["docs/y.py", "gone/y.py"],
        ),
    ],
    ids=["module", "module in src", "namespace", "deep namespace", "listed"],
)
def test_modules_that_stand_by_themselves_may_become_several(
    rules: Rules, counting: list[str], dropped: list[str]
) -> None:
    assert [path for path in counting if not rules.allow(change(path))] == []
    assert [path for path in dropped if rules.allow(change(path))] == []


def test_a_raw_diff_is_read_with_any_bytes_in_its_paths() -> None:
    raw = b":100644 100755 " + b"1" * 40 + b" " + b"2" * 40 + b" M\0a \n\xff.py\0"
    [entry] = Change.parse(raw)
    assert (entry.new_mode, entry.oid, entry.path) == ("100755", "2" * 40, "a \n\udcff.py")


@pytest.mark.parametrize("raw", [b"no diff", b"x\0", b"a b c d e f\0path\0"])
def test_what_is_no_raw_diff_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Change.parse(raw)
