"""What the bug generator reads of a package before it runs any of it."""

from __future__ import annotations

from email.message import Message

import pytest

from envs.swe.item import PYTEST_OWN
from envs.swe.package.project import normalize
from hermes_queue.errors import InputError
from tools.make_bugs.package import find_tests, license_of, parse_pin

TREE = frozenset(
    {
        "setup.py",
        "pkg/__init__.py",
        "pkg/testing.py",
        "pkg/tests/test_core.py",
        "tests/__init__.py",
        "tests/conftest.py",
        "tests/test_a.py",
        "tests/deep/b_test.py",
    }
)


def metadata(*headers: tuple[str, str]) -> Message:
    message = Message()
    for name, value in headers:
        message[name] = value
    return message


def test_a_pin_is_a_name_and_a_version() -> None:
    assert parse_pin(" python-slugify==9.2.0 ") == ("python-slugify", "9.2.0")


@pytest.mark.parametrize(
    "text", ["schedule", "schedule>=1", "schedule==1.*", "-r x", "a==1; b", "==1", "a b==1", ""]
)
def test_what_is_no_pin_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match=r"--package: .* e\.g\. schedule==1\.2\.2"):
        parse_pin(text)


@pytest.mark.parametrize("name", [*sorted(PYTEST_OWN), "PyTest", "Pygments"])
def test_packages_that_pytest_needs_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} cannot be used: .*clean copy would be"):
        parse_pin(f"{name}==1.0")


def test_names_are_compared_as_the_index_does() -> None:
    assert normalize("Python_Slugify..x") == "python-slugify-x"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("License-Expression", "MIT")], ("MIT", True)),
        ([("License-Expression", "MIT AND BSD-2-Clause")], ("MIT AND BSD-2-Clause", True)),
        ([("License", "MIT License\n\nCopyright ...")], ("MIT", True)),
        ([("License", "BSD-3-Clause")], ("BSD-3-Clause", True)),
        (
            [
                ("Classifier", "Topic :: X"),
                ("Classifier", "License :: OSI Approved :: BSD License"),
            ],
            ("BSD-3-Clause", True),
        ),
        ([("License", "GPLv3")], ("GPLv3", False)),
        ([("License", "LGPL with MIT parts")], ("LGPL with MIT parts", False)),
        ([("License-Expression", "MPL-2.0")], ("MPL-2.0", False)),
        ([], ("unknown", False)),
    ],
)
def test_the_licence_is_read_from_the_metadata(
    headers: list[tuple[str, str]], expected: tuple[str, bool]
) -> None:
    assert license_of(metadata(*headers)) == expected


def test_all_test_files_are_found() -> None:
    assert find_tests(TREE) == ("pkg/tests/test_core.py", "tests/deep/b_test.py", "tests/test_a.py")


def test_named_directories_and_files_narrow_them() -> None:
    assert find_tests(TREE, ["tests/"]) == ("tests/deep/b_test.py", "tests/test_a.py")
    assert find_tests(TREE, ["pkg/testing.py"]) == ("pkg/testing.py",)


@pytest.mark.parametrize("named", ["missing", "tests/test_z.py", "../tests", "/etc", "pkg/deep"])
def test_tests_that_are_not_there_are_named(named: str) -> None:
    with pytest.raises(InputError, match="--tests: the sdist has no"):
        find_tests(TREE, [named])


def test_a_package_without_tests_is_refused() -> None:
    with pytest.raises(InputError, match="--tests: the sdist has no test_"):
        find_tests(frozenset({"pkg/__init__.py"}))
