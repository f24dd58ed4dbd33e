"""Rows of SWE-smith, SWE-bench and our own as items."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError
from sample_package import FAIL_TO_PASS, bug_patch, make_row, mutation, sdist_row

from envs.swe.item import Item, skip_reason

SHA256 = "0" * 64


def refusal(row: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        Item.model_validate(row)
    return str(caught.value)


def test_test_ids_may_be_lists_or_json_text() -> None:
    as_list = Item.model_validate(make_row(patch=bug_patch()))
    as_text = Item.model_validate(
        make_row(patch=bug_patch(), FAIL_TO_PASS=json.dumps(list(FAIL_TO_PASS)))
    )
    assert as_list.FAIL_TO_PASS == as_text.FAIL_TO_PASS == FAIL_TO_PASS


def test_unknown_columns_are_kept() -> None:
    item = Item.model_validate(make_row(patch=bug_patch(), strategy="lm_rewrite"))
    assert item.model_dump()["strategy"] == "lm_rewrite"


def test_an_item_survives_json() -> None:
    item = Item.model_validate(sdist_row(SHA256))
    assert Item.model_validate_json(item.model_dump_json()) == item


def test_null_columns_count_as_absent() -> None:
    row = make_row(patch=bug_patch()) | {"mutation": None, "base_commit": "", "source": None}
    assert Item.model_validate(row).source.type == "git"


def test_the_sources_base_url_wins_over_the_rows() -> None:
    row = make_row(
        patch=bug_patch(), repo_base_url="/rows/", source={"repo_base_url": "https://h.example/x"}
    )
    assert Item.model_validate(row).clone_url == "https://h.example/x/someone/sample.git"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"patch": None, "mutation": None}, "patch and mutation"),
        ({"patch": bug_patch()}, "patch and mutation"),
        ({"FAIL_TO_PASS": "tests/test_a.py::test_b"}, "FAIL_TO_PASS"),
        ({"FAIL_TO_PASS": [7]}, "FAIL_TO_PASS"),
        ({"FAIL_TO_PASS": ["../secret.py::test_a"]}, "FAIL_TO_PASS"),
        ({"PASS_TO_PASS": ["/etc/passwd::x"]}, "PASS_TO_PASS"),
        ({"instance_id": None}, "instance_id"),
        ({"problem_statement": "  \n"}, "problem_statement"),
        ({"base_commit": "main"}, "base_commit"),
        ({"repo": "--upload-pack=x"}, "repo"),
        ({"repo_base_url": "-x"}, "repo_base_url"),
        ({"source": {"type": "sdist", "name": "a", "version": "1"}}, "source"),
        ({"environment": {"requirements": ["-r /etc/passwd"]}}, "requirements"),
        ({"environment": {"distribution": {"version": "a\nb"}}}, "distribution.version"),
        ({"environment": {"requirements": ["a==${PIP_INDEX_URL}"]}}, "requirements"),
        ({"environment": {"pythonpath": ["../.."]}}, "pythonpath"),
    ],
)
def test_a_malformed_row_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    assert field in refusal(sdist_row(SHA256, **changes))


@pytest.mark.parametrize("field", ["requirements", "install"])
@pytest.mark.parametrize(
    "line",
    [
        "Hermes_Queue.Sample==1.0",
        "hermes-queue-sample",
        "hermes_queue_sample[x] >= 1; python_version > '3'",
        "hermes-queue-sample @ file:///tmp/sample-1.0.tar.gz",
        "hermes-queue-sample@https://h.example/x.whl",
        f"hermes-queue-sample==1.0 --hash=sha256:{SHA256}",
    ],
)
def test_the_package_under_test_is_no_requirement(
    field: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_SANDBOX_DIRECT_URLS", "true")
    message = refusal(sdist_row(SHA256, environment={field: ["pytest==8.4.2", line]}))
    assert f"environment.{field} has {line!r}" in message
    assert "remove it" in message


@pytest.mark.parametrize(
    ("repo", "line"),
    [
        ("swesmith/marshmallow-code__webargs.dcc47d50", "webargs==8.6.0"),
        ("marshmallow-code/webargs", "WebArgs"),
    ],
)
def test_a_git_rows_package_goes_by_its_repository(repo: str, line: str) -> None:
    row = make_row(patch=bug_patch(), repo=repo, environment={"install": [line]})
    assert "environment.install" in refusal(row)
    row["environment"]["distribution"] = {"name": "webargs-fork"}
    assert Item.model_validate(row).package_name == "webargs-fork"


def test_what_pytest_needs_may_be_what_is_tested() -> None:
    row = make_row(patch=bug_patch(), repo="pytest-dev/iniconfig")
    assert Item.model_validate(row).package_name == "iniconfig"


def test_an_environment_may_be_json_text_and_have_nulls() -> None:
    runtime = {"python": None, "install": ["flask"], "env": {"A": "1", "B": None}}
    as_text = Item.model_validate(make_row(patch=bug_patch(), environment=json.dumps(runtime)))
    as_table = Item.model_validate(make_row(patch=bug_patch(), environment=runtime))
    assert as_text.environment == as_table.environment
    assert (as_text.environment.install, as_text.environment.env) == (("flask",), {"A": "1"})


@pytest.mark.parametrize("column", ["environment", "FAIL_TO_PASS"])
@pytest.mark.parametrize("text", ["{", "[" * 100_000, "7"])
def test_text_that_is_no_json_of_the_right_kind_is_refused(column: str, text: str) -> None:
    assert column in refusal(make_row(patch=bug_patch(), **{column: text}))


@pytest.mark.parametrize(
    "line",
    [
        "name @ https://evil.example/name-1.0.tar.gz",
        "name[extra]@git+https://evil.example/name",
    ],
)
def test_a_requirement_by_url_or_path_is_the_operators_to_allow(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = sdist_row(SHA256, environment={"install": [line]})
    assert "HERMES_QUEUE_SANDBOX_DIRECT_URLS=true" in refusal(row)
    monkeypatch.setenv("HERMES_QUEUE_SANDBOX_DIRECT_URLS", "true")
    assert Item.model_validate(row).environment.install == (line,)


@pytest.mark.parametrize(
    "line",
    [
        "name==1.0",
        "na-me[extra,more]~=1.0,!=1.2 ; python_version < '3.12' and os_name == 'a/b'",
        "name==1!2.0+local.1 --hash=sha256:ab/cd",
    ],
)
def test_a_requirement_by_version_is_taken_as_it_is(line: str) -> None:
    row = sdist_row(SHA256, environment={"requirements": [line]})
    assert Item.model_validate(row).environment.requirements == (line,)


@pytest.mark.parametrize("line", ["https://h.example/x-1.0.tar.gz", "directory/x-1.0.tar.gz"])
def test_a_requirement_without_a_name_is_refused_in_any_case(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = sdist_row(SHA256, environment={"install": [line]})
    assert "HERMES_QUEUE_SANDBOX_DIRECT_URLS=true" in refusal(row)
    monkeypatch.setenv("HERMES_QUEUE_SANDBOX_DIRECT_URLS", "true")
    assert "bare URLs are not allowed" in refusal(row)


def test_a_mutation_needs_an_sdist() -> None:
    assert "source" in refusal(make_row(mutation=mutation()))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"problem_statement": " "}, "problem_statement is empty"),
        ({"problem_statement": None}, "problem_statement is empty"),
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS names no test"),
        ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS names no test"),
        ({"FAIL_TO_PASS": None}, "FAIL_TO_PASS names no test"),
        ({"instance_id": None}, None),
    ],
)
def test_rows_that_are_not_tasks_are_recognised(
    changes: dict[str, Any], reason: str | None
) -> None:
    assert skip_reason(make_row(patch=bug_patch(), **changes)) == reason


def test_the_files_of_failing_tests_are_known() -> None:
    item = Item.model_validate(sdist_row(SHA256))
    assert item.hidden_files == ("tests/test_clamp.py",)
    assert item.test_files == ("tests/test_clamp.py", "tests/test_label.py")
    assert item.edited_files == ("sample/core.py",)
