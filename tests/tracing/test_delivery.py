"""Whatever a collector does, nobody waits for it and what waits for it stays small."""

from __future__ import annotations

import logging
import os
import socket
import time

import pytest
from otlp_receiver import slow
from ports import free_ports
from pydantic import ValidationError
from worker_process import wait_until

from hermes_queue.settings import OtelSettings
from hermes_queue.telemetry.otel.exporter import MOST_PENDING, OtelExporter
from hermes_queue.telemetry.otel.spans import TraceSpan
from hermes_queue.telemetry.scrubbing import Scrubber

NOW = time.time_ns()


def settings(url, **more):
    return OtelSettings(**{"endpoint": url, "interval_s": 0.02, "shutdown_s": 0.5, **more})


def exporter(url, **more):
    return OtelExporter(settings(url, **more), service="worker", instance="w")


def span(name="s", **more):
    return TraceSpan(name, b"t" * 16, b"s" * 8, b"", NOW, NOW + 1, **more)


def export(to, name="s", **more):
    to.spans(lambda: [span(name, **more)])


def closed(of):
    """Seconds that closing takes."""
    began = time.monotonic()
    of.close()
    return time.monotonic() - began


@pytest.fixture
def nobody():
    """A URL at which nobody listens."""
    return f"http://127.0.0.1:{free_ports(1)}"


def test_what_is_exported_last_is_sent_at_the_end(collector):
    made = exporter(collector.url, shutdown_s=30)
    export(made, "last")
    made.close()
    assert [each.name for each in collector.spans()] == ["last"]
    assert made.sent == {"traces": 1}


def test_a_collector_that_is_away_costs_no_more_than_the_time_at_the_end(nobody):
    made = exporter(nobody, queue_bytes=1 << 16)
    for _ in range(40):
        for _ in range(50):
            export(made, attributes={"text": "x" * 1000})
        time.sleep(0.01)
    assert made.waiting_bytes <= 1 << 16
    assert closed(made) < 10
    assert made.dropped["traces"] == 2000


def test_a_collector_that_answers_a_byte_at_a_time_is_cut_off(collector):
    collector.misbehave = slow(60)
    made = exporter(collector.url, timeout_s=0.3)
    export(made)
    collector.until(lambda: len(collector.requests) >= 2)  # the first was given up
    assert closed(made) < 10
    assert made.sent == {}


def test_a_request_whose_time_is_over_before_it_is_connected_is_given_up(collector, monkeypatch):
    resolve, asked = socket.getaddrinfo, []

    def slowly(*args, **named):
        asked.append(args)
        if len(asked) == 1:
            time.sleep(0.6)
        return resolve(*args, **named)

    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    collector.misbehave = slow(60)
    made = exporter(collector.url, timeout_s=0.3)
    export(made)
    collector.until(lambda: len(collector.requests) >= 2)
    assert closed(made) < 10


def test_attributes_of_the_environment_are_percent_decoded(collector, monkeypatch):
    monkeypatch.setenv(
        "OTEL_RESOURCE_ATTRIBUTES", "team=a%20b%2Cc%3Dd, k%65y = %C3%A9=x ,,service.name=other"
    )
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    made = exporter(collector.url, shutdown_s=30)
    export(made)
    made.close()
    found = collector.spans()[0].resource
    names = ("team", "key", "service.name")
    assert [found[name] for name in names] == ["a b,c=d", "é=x", "mine"]


@pytest.mark.parametrize("wrong", ["region", "=x", "a=%FF", "a=" + 5000 * "x"])
def test_attributes_with_an_error_are_ignored_as_a_whole(collector, monkeypatch, caplog, wrong):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"team=t,{wrong}")
    made = exporter(collector.url, shutdown_s=30)
    export(made)
    made.close()
    assert "team" not in collector.spans()[0].resource
    assert "OTEL_RESOURCE_ATTRIBUTES is ignored" in caplog.text


def test_of_an_answer_of_megabytes_nothing_is_read(collector):
    read = []

    def endless(request):
        request.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        block, sent = b"x" * (1 << 16), 0
        try:
            while sent < 256 << 20:
                request.wfile.write(block)
                sent += len(block)
        except OSError:
            read.append(sent)

    collector.misbehave = endless
    made = exporter(collector.url, shutdown_s=30)
    export(made)
    wait_until("the connection is closed", lambda: read)
    made.close()
    assert made.sent == {"traces": 1}
    assert read[0] < 64 << 20


def garbage(request):
    request.wfile.write(b"\x00\xff not http at all\r\n" * 100)


def hang_up(request):
    request.connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("misbehave", [garbage, hang_up])
def test_what_is_no_answer_is_tried_again_until_there_is_one(collector, misbehave):
    collector.misbehave = misbehave
    made = exporter(collector.url, shutdown_s=30)
    export(made)
    collector.until(lambda: collector.requests)
    collector.misbehave = None
    collector.until(lambda: len(collector.requests) >= 2)
    made.close()
    assert made.sent == {"traces": 1}


def test_what_the_collector_refuses_for_good_is_dropped_and_the_rest_goes_on(collector, caplog):
    collector.status = 400
    made = exporter(collector.url, shutdown_s=30)
    export(made)
    collector.until(lambda: collector.requests)
    collector.status = 200
    export(made, "later")
    collector.until(lambda: [each for each in collector.spans() if each.name == "later"])
    made.close()
    assert (made.dropped["traces"], made.sent["traces"]) == (1, 1)
    assert "HTTP 400" in caplog.text


def test_credentials_are_sent_and_never_logged(collector, nobody, caplog):
    caplog.set_level(logging.DEBUG)
    with_user = collector.url.replace("//", "//me:pass%40word@")
    made = exporter(with_user, headers="x-key=qqq%20zzz,other=1")
    export(made)
    made.close()
    [headers] = collector.headers
    assert headers["Authorization"] == "Basic bWU6cGFzc0B3b3Jk"
    assert headers["x-key"] == "qqq zzz"
    made = exporter(nobody.replace("//", "//me:pass%40word@"), headers="x-key=qqq%20zzz")
    export(made)
    made.close()
    assert "does not take traces" in caplog.text
    shown = caplog.text + repr(made.settings)
    assert not any(secret in shown for secret in ("pass%40word", "pass@word", "qqq", "zzz"))


def test_an_environment_with_a_collector_is_scrubbed_of_its_credentials():
    environment = {
        "HERMES_QUEUE_OTEL_ENDPOINT": "https://me:passw0rd@collector",
        "HERMES_QUEUE_OTEL_HEADERS": "authorization=Bearer%20abcdefgh,x-key=ijklmnop",
    }
    clean = Scrubber.of(environment)
    assert clean.text("passw0rd, Bearer abcdefgh, abcdefgh, ijklmnop") == "***, ***, ***, ***"


@pytest.mark.parametrize(
    "values",
    [
        {"endpoint": "collector:4318"},
        {"endpoint": "grpc://collector:4317"},
        {"endpoint": "http://collector:99999"},
        {"signals": "traces,profiles"},
        {"headers": "no value"},
        {"headers": "name=two%0d%0alines"},
        {"sample": 1.5},
    ],
)
def test_settings_that_cannot_work_are_refused(values):
    with pytest.raises(ValidationError):
        OtelSettings(**values)


def test_what_cannot_be_encoded_ends_nothing(collector):
    made = exporter(collector.url, shutdown_s=30)
    made.spans(lambda: 1 / 0)
    export(made, "\ud800 half a pair", attributes={"large": 10**30, "text": "\udfff"})
    made.close()
    [found] = collector.spans()
    assert (found.name, found.attributes["text"]) == ("? half a pair", "?")
    assert made.dropped["traces"] == 1


def test_more_than_can_be_encoded_is_dropped_and_counted(collector):
    made = exporter(collector.url, shutdown_s=30)

    def wait():
        time.sleep(0.3)
        return [span("slow")]

    made.spans(wait)
    for _ in range(3 * MOST_PENDING):
        export(made)
    made.close()
    assert made.dropped["traces"] + made.sent["traces"] == 3 * MOST_PENDING + 1
    assert made.dropped["traces"] > 0


def test_a_forked_process_sends_nothing_of_its_parent(collector):
    made = exporter(collector.url, shutdown_s=30)
    export(made, "parent's")
    child = os.fork()
    if not child:
        export(made, "child's")
        made.close()
        os._exit(0)
    os.waitpid(child, 0)
    made.close()
    assert [each.name for each in collector.spans()] == ["parent's"]


def test_a_second_close_does_nothing(collector):
    made = exporter(collector.url, shutdown_s=30)
    made.close()
    assert closed(made) < 0.1
    export(made)
    assert made.sent == {}
