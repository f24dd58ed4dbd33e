"""All processes agree on the trace of a trajectory, and nobody's header breaks them."""

from __future__ import annotations

import pytest

from hermes_queue.models import Provenance
from hermes_queue.telemetry.otel import context
from hermes_queue.wire.provenance import checked_traceparent, current_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{SPAN}-01"

HOSTILE = {
    "no text": 7,
    "bytes": HEADER.encode(),
    "nothing": "",
    "no header": "xyz",
    "a trace of zeros": f"00-{'0' * 32}-{SPAN}-01",
    "a span of zeros": f"00-{TRACE}-{'0' * 16}-01",
    "upper case": HEADER.upper(),
    "a forbidden version": "ff" + HEADER[2:],
    "more than version 00 has": HEADER + "-more",
    "a line break": HEADER + "\n",
    "digits of another script": HEADER.replace("7", "\u0667"),
    "megabytes": HEADER + "-" + "a" * (4 << 20),
    "a list": [HEADER],
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_trace_context_is_ignored(value):
    assert Provenance.model_validate({"producer": "p", "traceparent": value}).traceparent is None


def test_a_later_version_counts_as_far_as_it_is_known():
    later = f"cc-{TRACE}-{SPAN}-09-what-comes-then"
    assert checked_traceparent(later) == HEADER


def test_a_job_without_a_trace_looks_as_it_did_before_there_were_any():
    assert "traceparent" not in Provenance(producer="p").model_dump()


def test_the_variable_of_the_process_is_its_context(monkeypatch):
    monkeypatch.setenv("TRACEPARENT", HEADER)
    assert current_traceparent() == HEADER


def test_the_span_of_a_program_that_uses_opentelemetry_is_its_context(monkeypatch):
    from opentelemetry import trace

    monkeypatch.delenv("TRACEPARENT", raising=False)
    place = trace.SpanContext(int(TRACE, 16), int(SPAN, 16), True, trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(place)):
        assert current_traceparent() == HEADER
    assert current_traceparent() is None


def test_a_share_of_all_trajectories_is_sampled_and_a_larger_share_contains_it():
    def chosen(ratio):
        names = (f"run.group-{n}.0" for n in range(4000))
        return {name for name in names if context.of_trajectory(name, None, ratio).sampled}

    tenth, half = chosen(0.1), chosen(0.5)
    assert 300 < len(tenth) < 500
    assert tenth < half
    assert (len(chosen(0.0)), len(chosen(1.0))) == (0, 4000)


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_trajectory_with_a_parent_is_sampled_if_that_is(ratio):
    wanted = context.of_trajectory("t.g.0", HEADER, ratio)
    unwanted = context.of_trajectory("t.g.0", HEADER[:-1] + "0", ratio)
    assert (wanted.sampled, unwanted.sampled) == (True, False)
    assert (wanted.trace_id.hex(), wanted.parent_id.hex()) == (TRACE, SPAN)
    assert wanted.header().startswith(f"00-{TRACE}-")


def test_attempts_of_a_trajectory_have_spans_of_their_own():
    ids = {context.of_attempt("t.g.0", epoch) for epoch in range(50)}
    assert len(ids | {context.of_trajectory("t.g.0", None, 1.0).span_id}) == 51
