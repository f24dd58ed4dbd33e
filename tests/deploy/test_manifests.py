"""What kustomize makes of each folder conforms to Kubernetes' own schemas, and KEDA's fields."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from kubernetes_files import (
    FOLDER,
    OVERLAYS,
    Manifest,
    built,
    container,
    environment,
    objects,
    pods,
)

VERSION = kubernetes_validate.latest_version()

NAMED = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
TRIGGER = {
    "prometheus": ("serverAddress", "query", "threshold"),
    "metrics-api": ("url", "valueLocation", "targetValue"),
}
SCALED_OBJECT: dict[str, Any] = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "keda.sh/v1alpha1"},
        "spec": {
            "type": "object",
            "required": ["scaleTargetRef", "triggers"],
            "additionalProperties": False,
            "properties": {
                "scaleTargetRef": NAMED,
                "pollingInterval": {"type": "integer"},
                "cooldownPeriod": {"type": "integer"},
                "minReplicaCount": {"type": "integer", "minimum": 0},
                "maxReplicaCount": {"type": "integer", "minimum": 1},
                "advanced": {"type": "object"},
                "triggers": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["type", "metadata"],
                        "properties": {
                            "type": {"enum": list(TRIGGER)},
                            "metricType": {"enum": ["AverageValue", "Value"]},
                            "metadata": {
                                "type": "object",
                                "additionalProperties": {"type": "string"},
                            },
                        },
                    },
                },
            },
        },
    },
}
"""The fields of KEDA 2 that we use; its own definition is for clusters only."""


def check(manifest: Manifest) -> None:
    if manifest["kind"] == "ScaledObject":
        jsonschema.validate(manifest, SCALED_OBJECT)
        for trigger in manifest["spec"]["triggers"]:
            assert set(TRIGGER[trigger["type"]]) <= set(trigger["metadata"])
    else:
        kubernetes_validate.validate(manifest, VERSION, strict=True)


@pytest.fixture(scope="module", params=OVERLAYS)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return built(request.param)


def test_every_object_conforms(manifests):
    for each in manifests:
        check(each)


def test_the_producers_job_conforms():
    [job] = objects(FOLDER / "jobs/producer.yaml")
    check(job)


def test_a_mistake_is_found(manifests):
    [worker] = [
        each
        for each in manifests
        if each["metadata"]["name"] == "worker-train" and each["kind"] == "Deployment"
    ]
    broken = copy.deepcopy(worker)
    broken["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        check(broken)


def test_each_lane_has_workers_of_its_own(manifests):
    for lane in ("train", "eval"):
        found = container(manifests, f"worker-{lane}")
        assert environment(found)["HERMES_QUEUE_WORKER_LANES"] == lane


def test_selectors_find_their_own_pods_only(manifests):
    labels = {
        (each["kind"], each["metadata"]["name"]): each["spec"]["template"]["metadata"]["labels"]
        for each in manifests
        if each["kind"] in ("Deployment", "StatefulSet")
    }
    for each in manifests:
        if each["kind"] == "Service":
            chosen = each["spec"]["selector"]
        elif each["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
            chosen = each["spec"]["selector"]["matchLabels"]
        else:
            continue
        found = [name for (_, name), having in labels.items() if chosen.items() <= having.items()]
        assert found == [each["metadata"]["name"]]


def test_scalers_scale_what_is_there_and_decide_alone(manifests):
    deployments = {
        each["metadata"]["name"]: each for each in manifests if each["kind"] == "Deployment"
    }
    for each in manifests:
        if each["kind"] == "ScaledObject":
            target = deployments[each["spec"]["scaleTargetRef"]["name"]]
            assert "replicas" not in target["spec"]


def test_config_maps_and_secrets_that_pods_name_are_made_or_told(manifests):
    made = {each["metadata"]["name"] for each in manifests if each["kind"] == "ConfigMap"}
    named = {
        source["configMapRef"]["name"]
        for _, pod in pods(manifests)
        for each in pod["containers"]
        for source in each.get("envFrom", ())
        if "configMapRef" in source
    }
    assert named <= made
