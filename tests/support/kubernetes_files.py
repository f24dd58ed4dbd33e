"""The manifests in deploy/kubernetes: files, or what kustomize makes of a folder."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from debian_tools import KUBECTL, command_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
OVERLAYS = ("base", "with-redis", "with-keda", "with-keda-metrics-api", "local-slots")

Manifest = dict[str, Any]


def files() -> list[Path]:
    return sorted(FOLDER.rglob("*.yaml"))


def objects(path: Path) -> list[Manifest]:
    """The objects of one file."""
    return [each for each in yaml.safe_load_all(path.read_text("utf-8")) if each]


def all_objects() -> list[Manifest]:
    """The objects of all files, without kustomizations."""
    return [each for path in files() if path.stem != "kustomization" for each in objects(path)]


def built(overlay: str) -> list[Manifest]:
    """What `kubectl kustomize` makes of a folder."""
    command = [*command_of(KUBECTL), "kustomize", str(FOLDER / overlay)]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    return [each for each in yaml.safe_load_all(made.stdout) if each]


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The name and the pod of each object that makes pods."""
    for each in manifests:
        if each["kind"] in ("Deployment", "StatefulSet", "Job"):
            name = each["metadata"].get("name") or each["metadata"]["generateName"]
            yield name, each["spec"]["template"]["spec"]


def containers(manifests: list[Manifest]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The name of the pod and each of its containers."""
    for name, pod in pods(manifests):
        yield from ((name, each) for each in pod["containers"])


def container(manifests: list[Manifest], name: str) -> Mapping[str, Any]:
    [found] = [each for of, each in containers(manifests) if of == name]
    return found


def environment(container: Mapping[str, Any]) -> dict[str, str | None]:
    """Variables of a container by name; None = the value comes from elsewhere."""
    return {each["name"]: each.get("value") for each in container.get("env", ())}
