"""What others are told while the library works: log lines as JSON with table, run and snapshot, and spans of OpenTelemetry.

Spans cost nothing until a process has loaded OpenTelemetry. Metrics of `nevermore run` are in `cli/watch.py`.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType

from scan_core import hide_secrets, require_package

OTLP_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""OpenTelemetry's own variable with the address of a collector; setting it switches exports on."""
FACTS = ("table", "run", "snapshot")
"""Facts of every log line as JSON, if they are known."""
_KNOWN: ContextVar[Mapping[str, str | int]] = ContextVar("facts", default=MappingProxyType({}))


@contextmanager
def span(name: str, **facts: str | int) -> Iterator[None]:
    """Work on something: a span of OpenTelemetry with these facts, which log lines in it have, too."""
    token = _KNOWN.set({**_KNOWN.get(), **facts})
    try:
        if "opentelemetry.trace" in sys.modules:
            from opentelemetry import trace

            attributes = {f"nevermore.{fact}": value for fact, value in _KNOWN.get().items()}
            with trace.get_tracer("nevermore").start_as_current_span(name, attributes=attributes):
                yield
        else:
            yield
    finally:
        _KNOWN.reset(token)


class JsonLines(logging.Formatter):
    """One JSON object per record, without secrets: time, level, logger, message, and the facts of the work it is about."""

    def format(self, record: logging.LogRecord) -> str:
        """As one line."""
        known = _KNOWN.get()
        given = {fact: getattr(record, fact, known.get(fact)) for fact in FACTS}
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": hide_secrets(record.getMessage()),
            **{fact: value for fact, value in given.items() if value is not None},
        }
        if record.exc_info:
            document["error"] = hide_secrets(self.formatException(record.exc_info))
        return json.dumps(document, ensure_ascii=False)


def export_spans() -> None:
    """Send spans to the collector that OpenTelemetry's variables name; nothing without them.

    Raises:
        MissingPackageError: OpenTelemetry is not installed.
    """
    if not os.environ.get(OTLP_VARIABLE):
        return
    require_package(
        "opentelemetry.exporter.otlp.proto.http", f"an export to {OTLP_VARIABLE}", "nevermore-iceberg[watch]"
    )
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "nevermore"}))  # flushes at exit
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
