"""Rows of public datasets whose environment is an image, as rows of this env.

A row that names an image (`image`, `image_name`, `docker_image`), and neither a `source` nor an
`environment`, gets a `source` of type image. What differs from dataset to dataset:

SWE-bench, SWE-Gym   nothing; older releases name no image, see `names`
SWE-smith            `patch` is the bug, and the image, one per repository, does not have it yet
SWE-rebench          `install_config` has the test command; in V2, the repository is in /<name>
R2E-Gym              the fix and the tests are in columns of their own, see `r2e`
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from envs.swe.images import r2e
from envs.swe.images.commands import parse_command
from envs.swe.images.names import is_smith, stated_image
from envs.swe.images.runners import runner_of, runner_of_parser

_LARGE = ("parsed_commit_content", "execution_result_content", "expected_output_json", "prompt")
"""Columns that have been read, and would only make jobs larger."""


def with_image(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with a `source` of type image, if it is one with an image.

    Raises:
        ValueError: it cannot be graded here; the message names the column.
    """
    known = dict(row)
    image = stated_image(known)
    own = known.get("source")
    if isinstance(own, Mapping) and own.get("type") == "image" and own.get("runner") is None:
        known["source"] = {**own, "runner": runner_of(known)}
    if image is None or own or known.get("environment"):
        return known
    source: dict[str, Any] = {"type": "image", "reference": image}
    if known.get("expected_output_json") is not None:
        return _r2e(known, source)
    known["source"] = source
    source["runner"] = runner_of(known)
    if is_smith(image):
        source["patch"] = "bug"
        known.pop("base_commit", None)  # of the bug in old releases, and not in the image
    if known.get("install_config") is not None:
        _rebench(known, source)
    return known


def _rebench(row: dict[str, Any], source: dict[str, Any]) -> None:
    config = _decoded(row["install_config"])
    if parser := config.get("log_parser"):
        source["runner"] = runner_of_parser(parser, "install_config.log_parser")
    command = config.get("test_cmd")
    if isinstance(command, list):
        command = "\n".join(map(str, command))
    if command:
        try:
            found = parse_command(str(command))
        except ValueError as error:
            raise ValueError(f"install_config.test_cmd: {error}") from error
        row["environment"] = {"pytest_args": list(found.arguments), "env": found.env}
        source["runner"] = found.runner
    if row.get("docker_image") is None:  # V2
        source["workdir"] = "/" + str(row.get("repo", "")).rpartition("/")[2]


def _r2e(row: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in row.items() if key not in _LARGE}
    name, commit = str(row.get("repo_name") or ""), str(row.get("commit_hash") or "")
    known.setdefault("repo", name)
    known.setdefault("instance_id", f"{name}__{commit}" if commit else source["reference"])
    known["patch"] = r2e.gold_patch(str(row.get("parsed_commit_content") or ""))
    known["FAIL_TO_PASS"] = r2e.test_ids(str(row["expected_output_json"]))
    known["problem_statement"] = r2e.statement(str(row.get("problem_statement") or ""))
    known["source"] = {**source, "tests": f"/{r2e.TESTS}"}
    if name == "tornado":  # whose run_tests.sh is the only one without pytest
        known["source"]["runner"] = "unittest"
    return known


def _decoded(value: object) -> Mapping[str, Any]:
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise ValueError("install_config is not JSON") from error
    if not isinstance(value, Mapping):
        raise ValueError("install_config is no object")
    return value
