"""The lines of docs/kubernetes.md, one after the other, with `kubectl` that asks no cluster."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
import yaml
from debian_tools import KUBECTL, command_of
from kubernetes_files import ROOT, containers, pods

PAGE = (ROOT / "docs/kubernetes.md").read_text("utf-8")
STAND_IN = """#!/bin/sh
# `create` prints what it would make, `apply -k` what kustomize makes; all else needs a cluster.
case " $* " in
*" create --filename=- "*) echo ---; cat ;;
*" create "*) echo ---; exec {kubectl} "$@" --dry-run=client -o yaml ;;
" apply -k "*) echo ---; exec {kubectl} kustomize "$3" ;;
*" rollout "* | *" port-forward "*) ;;
*) echo "not expected: $*" >&2; exit 1 ;;
esac
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Everything that the page's lines make."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "deploy").symlink_to(ROOT / "deploy")
    for path, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        (folder / path).parent.mkdir()
        (folder / path).write_text(text)
    programs = folder / "bin"
    programs.mkdir()
    [kubectl] = command_of(KUBECTL)
    for name, text in (("kubectl", STAND_IN.format(kubectl=kubectl)), ("docker", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def named(made, kind):
    return {each["metadata"]["name"]: each for each in made if each["kind"] == kind}


def test_every_secret_that_a_pod_names_is_made_with_its_keys(made):
    secrets = {name: set(each["data"]) for name, each in named(made, "Secret").items()}
    asked = [
        (reference["name"], reference["key"])
        for _, found in containers(made)
        for each in found.get("env", ())
        if (reference := each.get("valueFrom", {}).get("secretKeyRef"))
    ]
    assert asked
    assert not [(name, key) for name, key in asked if key not in secrets[name]]
    whole = [
        each["secretRef"]["name"]
        for _, found in containers(made)
        for each in found.get("envFrom", ())
        if "secretRef" in each
    ]
    assert set(whole) <= secrets.keys()


def test_every_config_map_that_a_pod_names_is_made(made):
    config_maps = named(made, "ConfigMap")
    asked = {
        volume["configMap"]["name"]
        for _, pod in pods(made)
        for volume in pod.get("volumes", ())
        if "configMap" in volume
    }
    assert asked == {"redis-scripts"}
    assert {"start.sh", "users.acl"} <= config_maps["redis-scripts"]["data"].keys()


def test_every_pod_runs_the_image_that_was_pushed(made):
    [pushed] = re.findall(r"^docker push (\S+)", PAGE, re.MULTILINE)
    images = {name: found["image"] for name, found in containers(made)}
    assert len(images) == 8
    assert {image for name, image in images.items() if name != "redis"} == {pushed}


def test_settings_of_ones_own_are_merged_with_those_of_the_base(made):
    [settings] = [
        each["data"]
        for name, each in named(made, "ConfigMap").items()
        if name.startswith("hermes-queue-settings-")
    ]
    assert {"HERMES_QUEUE_OTEL_ENDPOINT", "HERMES_QUEUE_SANDBOX_BACKEND"} <= settings.keys()
