"""What the manifests for Kubernetes name exists, and they hold no secret and ask for no rights."""

from __future__ import annotations

import re

import pytest
import yaml
from kubernetes_files import (
    FOLDER,
    ROOT,
    all_objects,
    container,
    containers,
    environment,
    files,
    objects,
    pods,
)

from hermes_queue.cli import cli
from hermes_queue.settings import WorkerSettings, check_environment, sections, variable_names

MANIFESTS = all_objects()
TEXTS = {path: path.read_text("utf-8") for path in files()}
PODS = dict(pods(MANIFESTS))
CONTAINERS = list(containers(MANIFESTS))
NAMES = [name for name, _ in CONTAINERS]
PAGE = (ROOT / "docs/kubernetes.md").read_text("utf-8")
SECRET = re.compile(r"PASSWORD|TOKEN|SECRET|API_KEY|REDIS_URL|AUTH")


def test_every_setting_that_they_name_exists():
    named = {name for text in TEXTS.values() for name in re.findall(r"HERMES_QUEUE_[A-Z_]+", text)}
    assert named - set(variable_names(sections())) == set()


@pytest.mark.parametrize(("name", "found"), CONTAINERS, ids=NAMES)
def test_values_of_settings_are_accepted(name, found, monkeypatch):
    values = {name: value for name, value in environment(found).items() if value is not None}
    for variable, value in values.items():
        monkeypatch.setenv(variable, value)
    check_environment()


@pytest.mark.parametrize(("name", "found"), CONTAINERS, ids=NAMES)
def test_secrets_come_by_reference(name, found):
    plain = {variable for variable, value in environment(found).items() if value is not None}
    assert not [variable for variable in plain if SECRET.search(variable)]


def test_no_file_holds_a_secret():
    assert not [each for each in MANIFESTS if each["kind"] == "Secret"]


@pytest.mark.parametrize("name", PODS)
def test_no_pod_is_root_or_knows_the_cluster(name):
    pod = PODS[name]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    # Kubernetes adds variables for each service; HERMES_QUEUE_* that are no settings are refused.
    assert pod["enableServiceLinks"] is False


@pytest.mark.parametrize(("name", "found"), CONTAINERS, ids=NAMES)
def test_no_container_writes_to_its_image_or_gains_rights(name, found):
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "cpu" in found["resources"]["requests"]
    assert "memory" in found["resources"]["limits"]


@pytest.mark.parametrize(("name", "found"), CONTAINERS, ids=NAMES)
def test_volumes_that_are_mounted_are_declared(name, found):
    claims = [
        claim["metadata"]["name"]
        for each in MANIFESTS
        for claim in each.get("spec", {}).get("volumeClaimTemplates", ())
    ]
    declared = {each["name"] for each in PODS[name].get("volumes", ())} | set(claims)
    assert {each["name"] for each in found["volumeMounts"]} <= declared


@pytest.mark.parametrize(("name", "found"), CONTAINERS, ids=NAMES)
def test_commands_of_ours_exist(name, found):
    command = found["command"]
    if command[0] == "hermes-queue":
        group = cli
        for word in command[1:]:
            if word.startswith("-") or not hasattr(group, "commands"):
                break
            group = group.get_command(None, word)
            assert group is not None, word
        flags = {flag for parameter in group.params for flag in parameter.opts}
        assert {word for word in command if word.startswith("--")} <= flags
    elif command[0] == "sh":
        assert (ROOT / "deploy/redis" / command[1].rpartition("/")[2]).is_file()
    else:
        assert command[:3] in (
            ["celery", "-A", "hermes_queue"],
            ["python3", "-m", "producers.swe_smith"],
        )


def test_a_pod_may_live_longer_than_its_worker_drains():
    found, pod = container(MANIFESTS, "worker"), PODS["worker"]
    drains_s = float(environment(found)["HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S"])
    assert pod["terminationGracePeriodSeconds"] >= drains_s + 60


def test_finished_records_lie_in_a_volume():
    found = container(MANIFESTS, "worker")
    spool = re.search(r"HERMES_QUEUE_PATHS_SPOOL=(\S+)", (ROOT / "deploy/Dockerfile").read_text())
    mounts = [each["mountPath"] for each in found["volumeMounts"]]
    assert any(spool[1].startswith(f"{mount}/") for mount in mounts)


def test_probes_of_workers_ask_for_health_where_metrics_are_served():
    found = container(MANIFESTS, "worker")
    port = int(environment(found)["HERMES_QUEUE_METRICS_WORKER_PORT"])
    assert found["ports"] == [{"name": "metrics", "containerPort": port}]
    for probe, path in (("startup", "live"), ("liveness", "live"), ("readiness", "ready")):
        asked = found[f"{probe}Probe"]["httpGet"]
        assert asked == {"path": f"/health/{path}", "port": "metrics"}
    assert environment(found)["HERMES_QUEUE_METRICS_ADDRESS"] == "0.0.0.0"


def test_scalers_divide_by_the_slots_of_a_worker():
    slots = environment(container(MANIFESTS, "worker"))["HERMES_QUEUE_WORKER_CONCURRENCY"]
    scaled = [each for each in MANIFESTS if each["kind"] == "ScaledObject"]
    assert len(scaled) == 4
    for each in scaled:
        [trigger] = each["spec"]["triggers"]
        given = trigger["metadata"]
        assert given.get("threshold", given.get("targetValue")) == slots


def test_without_figures_no_scaler_ends_a_worker():
    scaled = [each["spec"] for each in MANIFESTS if each["kind"] == "ScaledObject"]
    assert not [each for each in scaled if "fallback" in each]
    prometheus = [t for each in scaled for t in each["triggers"] if t["type"] == "prometheus"]
    assert {each["metadata"]["ignoreNullValues"] for each in prometheus} == {"false"}


def test_secrets_that_are_named_are_explained():
    named = {
        (reference["name"], reference["key"])
        for _, found in CONTAINERS
        for each in found.get("env", ())
        if (reference := each.get("valueFrom", {}).get("secretKeyRef"))
    }
    assert named
    for name, key in named:
        assert name in PAGE
        assert f"--from-literal={key}=" in PAGE or f"`{key}`" in PAGE, (name, key)


def test_lanes_are_lanes(monkeypatch):
    for path in FOLDER.glob("worker-*/kustomization.yaml"):
        [kustomization] = objects(path)
        [patch] = kustomization["patches"]
        place, lane = yaml.safe_load(patch["patch"])
        assert place["path"] == "/spec/template/spec/containers/0/env/4/name"
        variables = [each["name"] for each in container(MANIFESTS, "worker")["env"]]
        assert variables[4] == place["value"] == "HERMES_QUEUE_WORKER_LANES"
        monkeypatch.setenv("HERMES_QUEUE_WORKER_LANES", lane["value"])
        assert WorkerSettings().lanes == lane["value"]


def reach(name):
    """Ports to which the policies let the pods of a name connect; "any" for all."""
    found = set()
    for each in MANIFESTS:
        if each["kind"] != "NetworkPolicy" or "Egress" not in each["spec"]["policyTypes"]:
            continue
        chosen = each["spec"]["podSelector"]
        names = [chosen.get("matchLabels", {}).get("app.kubernetes.io/name")]
        names += [n for rule in chosen.get("matchExpressions", ()) for n in rule["values"]]
        if name in names:
            for rule in each["spec"]["egress"]:
                found |= {port["port"] for port in rule["ports"]} if rule else {"any"}
    return found


REDIS, STORE, COLLECTOR = {53, 6379, 26379}, {443, 9000}, {4318}


@pytest.mark.parametrize(
    ("name", "ports"),
    [
        ("worker", {"any"}),
        ("producer", {"any"}),
        ("exporter", REDIS),
        ("flower", REDIS),
        ("view", REDIS | STORE),
        ("sink", REDIS | STORE | COLLECTOR),
        ("redis", set()),
    ],
)
def test_each_component_reaches_what_it_needs_and_no_more(name, ports):
    assert reach(name) == ports
