"""What a meter keeps, and who may ask for it."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
from contextlib import closing

import pytest
from records import make_job, make_record
from scrape import fetch, scrape, value

from hermes_queue.agent.endpoint.limiter import Unlimited
from hermes_queue.errors import ConfigurationError
from hermes_queue.models import Usage
from hermes_queue.telemetry import metrics
from hermes_queue.telemetry.endpoint import MetricsEndpoint
from hermes_queue.telemetry.meter import PrometheusMeter
from workers.upkeep.metering import MeteredLimiter, published


def endpoint(pages, **more):
    options = {"address": "127.0.0.1", "port": 0, "setting": "HERMES_QUEUE_METRICS_SINK_PORT"}
    return closing(MetricsEndpoint(pages, **{**options, **more}))


def series(meter):
    with endpoint({"/metrics": meter.exposition}) as served:
        return scrape(f"http://{served.target()}/metrics")


def test_values_of_a_label_beyond_the_bound_count_together():
    meter = PrometheusMeter("worker", max_label_values=3)
    for n in range(50):
        meter.add(metrics.ATTEMPTS, {"env": f"env{n}", "outcome": "measured"})
    found = series(meter)
    counts = {labels: v for (name, labels), v in found.items() if "attempts_total" in name}
    assert len(counts) == 4
    assert value(found, "attempts_total", env="other", outcome="measured") == 47


def test_bounded_gauges_add_up_under_other():
    values = [(metrics.LANE_DEPTH, {(f"lane{n}", "first"): 2 for n in range(10)})]
    meter = PrometheusMeter("exporter", max_label_values=4, values=lambda: values)
    assert value(series(meter), "lane_depth", lane="other", queue="first") == 12


def test_a_gauge_that_is_gone_is_not_repeated():
    values = [(metrics.LANE_DEPTH, {("a", "first"): 1.0})]
    meter = PrometheusMeter("exporter", max_label_values=4, values=lambda: values)
    assert value(series(meter), "lane_depth", lane="a", queue="first") == 1
    values.clear()
    assert value(series(meter), "lane_depth", lane="a", queue="first") is None


async def test_calls_of_models_are_counted_by_how_they_went():
    meter = PrometheusMeter("worker", max_label_values=10)
    limiter = MeteredLimiter(Unlimited(), meter)
    async with limiter.slot("http://h/v1", "m") as permit:
        permit.settle(Usage(prompt_tokens=30, completion_tokens=5, cached_tokens=20))
    async with limiter.slot("http://h/v1", "m") as permit:
        permit.refused(1.0)
    async with limiter.slot("http://h/v1", "m") as permit:
        permit.refused(1.0, paused=True)
    with pytest.raises(RuntimeError):
        async with limiter.slot("http://h/v1", "m"):
            raise RuntimeError
    found = series(meter)
    labels = {"endpoint": "http://h/v1", "model": "m"}
    for outcome in ("ok", "refused", "paused", "failed"):
        assert value(found, "model_calls_total", outcome=outcome, **labels) == 1
    assert value(found, "model_call_seconds_count", **labels) == 1
    assert value(found, "model_wait_seconds_count", **labels) == 4
    assert value(found, "model_tokens_total", kind="prompt", **labels) == 30
    assert value(found, "model_tokens_total", kind="cached", **labels) == 20


def test_only_the_answer_by_which_a_record_counts_is_counted():
    meter = PrometheusMeter("worker", max_label_values=10)
    record = make_record(make_job())
    for verdict in ("final", "surplus", "cancelled", "stale", "unknown", "group"):
        published(meter, record, verdict)
    found = series(meter)
    assert value(found, "score_count", env="gsm8k") == 1
    assert value(found, "trajectory_stops_total", env="gsm8k", reason="no_tool_call") == 1


def test_an_unknown_page_is_404_and_a_broken_one_500_and_both_leave_it_serving(caplog):
    def broken():
        raise RuntimeError("no")

    with endpoint({"/metrics": lambda: (b"fine", "text/plain"), "/broken": broken}) as served:
        for path, status in (("/", 404), ("/broken", 500)):
            with pytest.raises(urllib.error.HTTPError) as error:
                fetch(f"http://{served.target()}{path}")
            error.value.close()
            assert error.value.code == status
        assert fetch(f"http://{served.target()}/metrics") == "fine"
    assert [record.action for record in caplog.records] == ["metrics_failed"]


def test_a_port_that_is_taken_is_named_with_its_variable():
    with (
        endpoint({}) as served,
        pytest.raises(ConfigurationError, match=rf"SINK_PORT: port {served.port} of 127"),
    ):
        MetricsEndpoint({}, address="127.0.0.1", port=served.port, setting="X_SINK_PORT")


def test_an_address_that_is_none_is_named_with_its_variable():
    with pytest.raises(ConfigurationError, match="HERMES_QUEUE_METRICS_ADDRESS: 'no such"):
        endpoint({}, address="no such host")


def test_an_open_address_is_advertised_by_the_name_of_the_host():
    with endpoint({}, address="0.0.0.0") as served:
        assert not served.target().startswith("0.")
        assert served.target("outside.example") == f"outside.example:{served.port}"


def test_without_prometheus_client_only_a_configured_port_fails_and_says_what_to_install():
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import workers.lifecycle\n"
        "from hermes_queue.errors import ConfigurationError\n"
        "from hermes_queue.settings import MetricsSettings\n"
        "from workers.upkeep import metering\n"
        "assert metering.serve(int, list, MetricsSettings(worker_port=None), {}) is None\n"
        "try: metering.serve(int, list, MetricsSettings(worker_port=0), {})\n"
        "except ConfigurationError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'hermes-queue[metrics]'" in result.stdout, result.stderr


def test_importing_the_declarations_loads_no_prometheus_client():
    code = (
        "import sys, workers.lifecycle, hermes_queue.sinks.metering\n"
        "import hermes_queue.cli.exporter\n"
        "print('prometheus_client' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "False", result.stderr
