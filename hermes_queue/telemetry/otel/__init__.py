"""Traces, metrics and logs for a collector, by OTLP over HTTP.

No package is loaded while `HERMES_QUEUE_OTEL_ENDPOINT` is unset: `encoding.py` alone needs one.

context.py    which trace a trajectory belongs to, and whether it is exported
delivery.py   a bounded queue, and the thread that empties it
encoding.py   spans, metrics and log lines as protobuf: needs the extra `otel`
exporter.py   the exporter of a process
log_lines.py  a log handler that exports lines
meter.py      a meter that is exported
producing.py  the span of a producer's call
spans.py      spans and the names of their attributes
timeline.py   what is noted while an attempt runs
transport.py  one bounded HTTP request
"""
