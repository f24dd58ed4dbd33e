"""docker-compose.yml conforms to the specification, and what it names exists."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_file import FILE, environment_file, load
from ledger_keys import ROOT

from hermes_queue.settings import variable_names

SCHEMA = json.loads((Path(__file__).parent / "compose-spec/schema.json").read_text())


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    return environment_file()


@pytest.fixture(scope="module")
def file(variables: dict[str, str]) -> dict[str, Any]:
    return load(variables)


@pytest.fixture(scope="module")
def services(file: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return dict(file["services"])


def problems(file: dict[str, Any]) -> list[str]:
    import jsonschema  # a quarter of what all imports take while tests are collected

    checker = jsonschema.Draft201909Validator(SCHEMA)
    return [f"{error.json_path}: {error.message}" for error in checker.iter_errors(file)]


def test_it_conforms_to_the_specification(file):
    assert problems(file) == []


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (("services", "worker"), {"enviroment": {}}),
        (("services", "redis", "healthcheck"), {"intervall": "5s"}),
        (("services", "flower"), {"ports": "5555"}),
        (("services", "redis"), {"depends_on": {"worker": {"condition": "healthy"}}}),
        ((), {"service": {}}),
    ],
)
def test_a_mistake_is_found(file, place, wrong):
    broken = copy.deepcopy(file)
    inner = broken
    for name in place:
        inner = inner[name]
    inner.update(wrong)
    assert problems(broken)


def test_the_environment_file_has_every_variable_that_must_be_set(variables):
    required = set(re.findall(r"\$\{(\w+):\?", FILE.read_text()))
    assert required == set(variables)


def test_an_environment_file_of_before_keeps_what_it_has_and_gets_what_is_new(tmp_path, variables):
    path = tmp_path / ".env"
    path.write_text("REDIS_WORKER_PASSWORD=of-a-redis-that-runs\nMINE=1")
    for _ in range(2):
        subprocess.run(["sh", str(ROOT / "deploy/make-env.sh"), str(path)], check=True)
        lines = path.read_text().splitlines()
        found = dict(line.split("=", 1) for line in lines)
        assert lines[:2] == ["REDIS_WORKER_PASSWORD=of-a-redis-that-runs", "MINE=1"]
        assert set(found) == {*variables, "MINE"}
        assert len(lines) == len(found)


def test_every_setting_of_ours_exists(services):
    named = {
        name
        for service in services.values()
        for name in service.get("environment", {})
        if name.startswith("HERMES_QUEUE_")
    }
    assert len(named) > 5
    assert named - set(variable_names()) == set()


OF_OTHER_REDISES = (
    *("TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_CHECK_HOSTNAME"),
    *("SENTINEL_USERNAME", "SENTINEL_PASSWORD", "CONFIRM_REPLICAS", "CONFIRM_TIMEOUT_S"),
)
SETTLED = {
    "HERMES_QUEUE_REDIS_URL": "each process has a user of its own",
    "HERMES_QUEUE_REDIS_PREFIX": "the users' rights name it",
    **dict.fromkeys(
        (f"HERMES_QUEUE_REDIS_{name}" for name in OF_OTHER_REDISES),
        "the service redis speaks no TLS, and has neither sentinels nor replicas",
    ),
    "HERMES_QUEUE_PATHS_CACHE": "a volume; the image has it",
    "HERMES_QUEUE_PATHS_SPOOL": "likewise",
    "HERMES_QUEUE_ARCHIVE_DIRECTORY": "likewise",
    "HERMES_QUEUE_METRICS_ADDRESS": "prometheus.yml says where it reads",
    "HERMES_QUEUE_METRICS_WORKER_PORT": "likewise",
    "HERMES_QUEUE_METRICS_SINK_PORT": "likewise",
    "HERMES_QUEUE_METRICS_EXPORTER_PORT": "likewise",
    "HERMES_QUEUE_VIEW_TOKEN": "it opens the pages, which one service serves",
    "HERMES_QUEUE_VIEW_OPERATOR_TOKEN": "likewise; that service acts on nothing",
    "HERMES_QUEUE_VIEW_OPERATOR_REDIS_URL": "likewise",
    "HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S": "stop_grace_period must be longer",
}
"""Settings that .env does not decide, and why."""
KEY = "HERMES_QUEUE_MODEL_API_KEY"
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()


def test_every_setting_in_the_environment_file_reaches_our_services(variables):
    chosen = {name: "chosen" for name in variable_names()}
    services = load({**chosen, **variables})["services"]
    ours = {name: s for name, s in services.items() if "HERMES_QUEUE_REDIS_URL" in str(s)}
    assert set(ours) >= {"worker", "worker-localmodal", "sink", "flower", "producer", "cli"}
    for name, service in ours.items():
        passed_on = {k for k, v in service["environment"].items() if v in (None, "chosen")}
        may_know_the_key = name in ("worker", "worker-localmodal", "cli")
        kept = set(SETTLED) | (set() if may_know_the_key else {KEY})
        if name == "worker-localmodal":
            kept |= {"HERMES_QUEUE_SANDBOX_BACKEND"}
        assert set(variable_names()) - passed_on == kept, name


def test_what_the_image_settles_is_not_taken_away(services):
    """A variable without a value removes the image's own where the file of variables has none."""
    image = set(re.findall(r"HERMES_QUEUE_\w+(?==)", DOCKERFILE))
    assert image
    for service in services.values():
        assert not image & set(service.get("environment", ()))


def test_networks_and_volumes_are_declared_and_used(file, services):
    networks, volumes = set(), set()
    for service in services.values():
        networks |= set(service.get("networks", ()))
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), source
            else:
                volumes.add(source)
    assert networks == set(file["networks"])
    assert volumes == set(file["volumes"])


def test_services_wait_for_services_that_have_what_they_wait_for(services):
    for service in services.values():
        for name, wanted in service.get("depends_on", {}).items():
            assert wanted["condition"] != "service_healthy" or "healthcheck" in services[name]


def test_nothing_is_published_beyond_loopback_and_redis_not_at_all(services):
    ports = {name: s["ports"] for name, s in services.items() if "ports" in s}
    assert set(ports) == {"flower", "prometheus", "grafana", "view"}
    assert all(port.startswith("127.0.0.1:") for each in ports.values() for port in each)
    assert not {"privileged", "cap_add", "devices", "pid"} & {
        k for s in services.values() for k in s
    }


def test_the_viewer_may_write_its_index_and_reviews_and_nothing_else(services):
    view = services["view"]
    assert (view["read_only"], view["cap_drop"]) == (True, ["ALL"])
    assert view["security_opt"] == ["no-new-privileges:true"]
    written = {
        mount.split(":")[0]: mount.split(":")[1]
        for mount in view["volumes"]
        if not mount.endswith(":ro")
    }
    assert written == {"view-index": "/var/cache/hermes-queue", "reviews": "/data/reviews"}
    made = re.search(r"install -d -o hermes -g hermes -m 700 ([^\\]+)", DOCKERFILE)
    assert "/data/reviews" in made[1].split()
    assert view["command"][-2:] == ["--reviews", "/data/reviews/reviews.jsonl"]
    assert "--actions" not in view["command"]


def test_images_of_others_have_versions(services):
    foreign = [s["image"] for s in services.values() if "build" not in s]
    assert len(foreign) == 3
    assert all(re.search(r":v?\d+\.\d+", image) for image in foreign)


def test_every_process_has_the_least_user_of_redis_that_does(services):
    users = {
        name: match[1]
        for name, service in services.items()
        if (url := service.get("environment", {}).get("HERMES_QUEUE_REDIS_URL"))
        and (match := re.match(r"redis://(\w+):", url))
    }
    assert users == {
        "worker": "worker",
        "worker-localmodal": "worker",
        "sink": "consumer",
        "atropos-sink": "consumer",
        "flower": "flower",
        "exporter": "monitor",
        "view": "viewer",
        "producer": "producer",
        "cli": "operator",
    }


def test_workers_have_longer_to_end_than_they_drain(services):
    for name in ("worker", "worker-localmodal"):
        grace_s = float(services[name]["stop_grace_period"].removesuffix("s"))
        drain_s = float(services[name]["environment"]["HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S"])
        assert grace_s >= drain_s + 45


def test_prometheus_reaches_what_it_scrapes(services):
    text = (ROOT / "deploy/prometheus.yml").read_text()
    targets = {tuple(found) for found in re.findall(r"\b([a-z-]+):(\d+)", text)}
    for job in yaml.safe_load(text)["scrape_configs"]:
        for found in job.get("dns_sd_configs", ()):
            targets |= {(name, str(found["port"])) for name in found["names"]}
    assert {name for name, _ in targets} == {"exporter", "sink", "atropos-sink", "flower"}
    networks = set(services["prometheus"]["networks"])
    for name, port in targets:
        service = services[name]
        assert networks & set(service["networks"]), name
        environment = service["environment"]
        arguments = " ".join(service["command"])
        assert port in arguments or environment.get("HERMES_QUEUE_METRICS_SINK_PORT") == port
        assert "0.0.0.0" in arguments or environment["HERMES_QUEUE_METRICS_ADDRESS"] == "0.0.0.0"


def test_prometheus_reaches_every_worker(services):
    networks = set(services["prometheus"]["networks"])
    for name in ("worker", "worker-localmodal"):
        environment = services[name]["environment"]
        assert environment["HERMES_QUEUE_METRICS_ADDRESS"] == "0.0.0.0"
        assert environment["HERMES_QUEUE_METRICS_WORKER_PORT"] == "9809"
        shared = services[name].get("network_mode", f"service:{name}").removeprefix("service:")
        assert networks & set(services[shared]["networks"])


def test_grafana_finds_its_dashboards_and_its_source(services):
    provisioning = ROOT / "deploy/grafana/provisioning"
    mounts = dict(mount.split(":")[:2] for mount in services["grafana"]["volumes"])
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    boards = yaml.safe_load((provisioning / "dashboards/hermes-queue.yml").read_text())
    assert boards["providers"][0]["options"]["path"] == mounts["./deploy/grafana/dashboards"]
    source = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    assert set(services["grafana"]["networks"]) & set(services["prometheus"]["networks"])
