"""What a repository's files say its tests need."""

from __future__ import annotations

import pytest

from envs.swe.package.project import parse_project
from hermes_queue.errors import InputError
from producers.dependencies import Dependencies, gather
from producers.make_environment import explain_refusal, main

PYPROJECT = """
[project]
name = "web.args"
version = "1"
dependencies = ["packaging>=17"]
[project.optional-dependencies]
frameworks = ["flask>=2", "django; python_version > '3.8'"]
tests = ["Web_Args[frameworks]", "pytest", "pytest"]
[dependency-groups]
lint = ["ruff"]
dev = [{include-group = "lint"}, "tox", {include-group = "dev"}]
"""
FILES = {
    "requirements/dev.txt": "# tools\n-r base.in\n-r ../more.txt\n-c limits.txt\n-e .[tests]\n"
    "git+https://h.example/x\nx @ https://h.example/x.whl\n",
    "requirements/base.in": "attrs==1 \\\n  --hash=sha256:00\n-r dev.txt\nmock # why\n",
    "more.txt": "six;python_version<'3'\n",
    "outside.txt": "-r ../../etc/passwd\n",
}


async def gathered(text: str = PYPROJECT, **choice: tuple[str, ...]) -> Dependencies:
    async def read(path: str) -> str | None:
        return FILES.get(path)

    return await gather(parse_project({"pyproject.toml": text}), read, **choice)


async def test_extras_of_the_package_itself_are_followed() -> None:
    found = await gathered(extras=("Tests",))
    assert found.lines == [
        "packaging>=17",
        "flask>=2",
        "django; python_version > '3.8'",
        "pytest",
    ]


async def test_groups_include_groups_once() -> None:
    assert (await gathered(groups=("dev",))).lines == ["packaging>=17", "ruff", "tox"]


async def test_requirements_files_include_others_and_lines_unknown_to_an_index_are_reported() -> (
    None
):
    found = await gathered(files=("requirements/dev.txt",))
    assert found.lines == [
        *("packaging>=17", "attrs==1", "mock", "six;python_version<'3'"),
        *("flask>=2", "django; python_version > '3.8'", "pytest"),
    ]
    assert found.left_out == [
        "-c limits.txt",
        "git+https://h.example/x",
        "x @ https://h.example/x.whl",
    ]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"extras": ("gone",)}, "--extra gone: .*it has: frameworks, tests"),
        ({"groups": ("gone",)}, "--group gone: .*it has: dev, lint"),
        ({"files": ("gone.txt",)}, "--requirements gone.txt: the repository has no such text file"),
        ({"files": ("outside.txt",)}, "outside.txt: -r ../../etc/passwd: the repository has no"),
    ],
)
async def test_the_error_names_a_list_that_does_not_exist(
    choice: dict[str, tuple[str, ...]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        await gathered(**choice)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--as-of", "yesterday"], "--as-of: 'yesterday' is not a date such as 2025-03-16"),
        (["--repo-base-url", "/no/such/place"], "directory /no/such/place does not exist"),
        (["--repo", "a b"], "--repo: 'a b' cannot be part of a clone URL"),
    ],
)
def test_a_wrong_flag_of_make_environment_is_exit_2(
    tmp_path: object, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    known = ["--repo", "o/n", "--ref", "main", "--out", f"{tmp_path}/e.json"]
    assert main([*known, *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            "ERROR: No matching distribution found for attrs>=25\n",
            "the index had no attrs>=25 as of 2024-01-01 for this Python",
        ),
        ("no such option: --uploaded-prior-to", "pip install --upgrade pip"),
        ("Index x does not provide upload-time metadata.", "--as-of now"),
        ("ERROR: ResolutionImpossible: for help", "contradict each other"),
        ("Connection reset by peer", None),
    ],
)
def test_what_pip_says_of_the_request_is_the_users_to_mend(
    output: str, message: str | None
) -> None:
    error = explain_refusal(output, "2024-01-01")
    assert error is None if message is None else message in str(error)
