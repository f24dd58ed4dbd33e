"""docker-compose.yml is one that Compose takes, and what it names exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_file import FILE, ComposeRefused, environment_file, load
from ledger_keys import ROOT

from hermes_queue.settings import sections, variable_names


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    return environment_file()


@pytest.fixture(scope="module")
def file(variables: dict[str, str]) -> dict[str, Any]:
    return load(variables)


@pytest.fixture(scope="module")
def services(file: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return dict(file["services"])


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("    user: redis\n", "    user: redis\n    user: root\n"),
        ("    user: redis\n", "    usr: redis\n"),
        ("${REDIS_WORKER_PASSWORD:?run deploy/make-env.sh}", "${MISSING:?run deploy/make-env.sh}"),
        ("networks: [metrics, outside]", "networks: [metrics, inside]"),
    ],
    ids=["a key twice", "an unknown key", "a variable that nobody sets", "an unknown network"],
)
def test_compose_refuses_a_mistake_in_it(variables, right, wrong):
    text = FILE.read_text()
    assert right in text
    with pytest.raises(ComposeRefused):
        load(variables, text=text.replace(right, wrong, 1))


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
    assert named - set(variable_names(sections())) == set()


SETTLED = {
    "HERMES_QUEUE_REDIS_URL": "each process has a user of its own",
    "HERMES_QUEUE_METRICS_ADDRESS": "prometheus.yml says where it reads",
    "HERMES_QUEUE_METRICS_WORKER_PORT": "likewise",
    "HERMES_QUEUE_METRICS_SINK_PORT": "likewise",
    "HERMES_QUEUE_VIEW_TOKEN": "make-env.sh makes it",
    "HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S": "stop_grace_period must be longer",
    "HERMES_QUEUE_MODEL_API_KEY": "a secret, which .env has for those that need it",
}
"""Settings that settings.env does not decide for some service, and why."""
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()


def test_a_setting_in_settings_env_reaches_our_services_or_is_settled_for_a_reason(variables):
    services = load(variables, settings=dict.fromkeys(variable_names(sections()), "chosen"))[
        "services"
    ]
    ours = {name: s for name, s in services.items() if s.get("image") == "hermes-queue"}
    assert set(ours) >= {"worker", "sink", "flower", "producer", "cli"}
    for name, service in ours.items():
        kept = {k for k in variable_names(sections()) if service["environment"].get(k) != "chosen"}
        assert kept <= set(SETTLED), name


def test_a_setting_named_without_a_value_comes_from_the_environment_file(variables):
    variables = {**variables, "HERMES_QUEUE_WORKER_LANES": "eval"}
    services = load(variables, settings={"HERMES_QUEUE_WORKER_LANES": None})["services"]
    assert services["worker"]["environment"]["HERMES_QUEUE_WORKER_LANES"] == "eval"


def test_settings_in_the_environment_file_move_where_services_read_them(tmp_path):
    file = tmp_path / ".env"
    file.write_text("HERMES_QUEUE_WORKER_LANES=eval\nHERMES_QUEUE_MODEL_API_KEY=k\nBASE_IMAGE=b\n")
    for _ in range(2):
        subprocess.run(["sh", ROOT / "deploy/make-env.sh", file], check=True)
    kept = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert (kept["HERMES_QUEUE_MODEL_API_KEY"], kept["BASE_IMAGE"]) == ("k", "b")
    assert "HERMES_QUEUE_WORKER_LANES" not in kept
    assert (tmp_path / "settings.env").read_text() == "HERMES_QUEUE_WORKER_LANES=eval\n"


def test_a_password_reaches_nobody_but_its_user_and_redis(services, variables):
    secrets = {name: value for name, value in variables.items() if name.startswith("REDIS_")}
    for service, spec in services.items():
        environment = str(spec.get("environment"))
        known = [name for name, value in secrets.items() if value in environment]
        assert service == "redis" or len(known) <= 1, service


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
            if mount["type"] == "bind":
                assert Path(mount["source"]).exists(), mount
            else:
                volumes.add(mount["source"])
    assert networks == set(file["networks"])
    assert volumes == set(file["volumes"])


def test_services_wait_for_services_that_have_what_they_wait_for(services):
    for service in services.values():
        for name, wanted in service.get("depends_on", {}).items():
            assert wanted["condition"] != "service_healthy" or "healthcheck" in services[name]


def test_nothing_is_published_beyond_loopback_and_redis_not_at_all(services):
    ports = {name: s["ports"] for name, s in services.items() if "ports" in s}
    assert set(ports) == {"flower", "prometheus", "grafana", "view"}
    assert all(port["host_ip"] == "127.0.0.1" for each in ports.values() for port in each)
    assert not {"privileged", "cap_add", "devices", "pid"} & {
        k for s in services.values() for k in s
    }


def test_the_viewer_may_write_its_index_and_reviews_and_nothing_else(services):
    view = services["view"]
    assert (view["read_only"], view["cap_drop"]) == (True, ["ALL"])
    assert view["security_opt"] == ["no-new-privileges:true"]
    written = {
        mount["source"]: mount["target"] for mount in view["volumes"] if not mount.get("read_only")
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
        "sink": "consumer",
        "atropos-sink": "consumer",
        "flower": "flower",
        "exporter": "monitor",
        "view": "viewer",
        "producer": "producer",
        "cli": "operator",
    }


def test_workers_have_longer_to_end_than_they_drain(services):
    worker = services["worker"]
    minutes, seconds = worker["stop_grace_period"].removesuffix("s").split("m")
    grace_s = 60 * float(minutes) + float(seconds)
    drain_s = float(worker["environment"]["HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S"])
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
    environment = services["worker"]["environment"]
    assert environment["HERMES_QUEUE_METRICS_ADDRESS"] == "0.0.0.0"
    assert environment["HERMES_QUEUE_METRICS_WORKER_PORT"] == "9809"
    assert networks & set(services["worker"]["networks"])


def test_grafana_finds_its_dashboards_and_its_source(services):
    provisioning = ROOT / "deploy/grafana/provisioning"
    mounts = {mount["source"]: mount["target"] for mount in services["grafana"]["volumes"]}
    assert mounts[str(provisioning)] == "/etc/grafana/provisioning"
    boards = yaml.safe_load((provisioning / "dashboards/hermes-queue.yml").read_text())
    shown = boards["providers"][0]["options"]["path"]
    assert shown == mounts[str(ROOT / "deploy/grafana/dashboards")]
    source = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    assert set(services["grafana"]["networks"]) & set(services["prometheus"]["networks"])
