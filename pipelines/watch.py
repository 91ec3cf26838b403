"""What the library reports while it works: log lines as JSON, spans of OpenTelemetry, and alerts to a webhook.

Log lines and spans name table, run and snapshot. Spans cost nothing until a process has loaded OpenTelemetry. An alert is one
JSON object whose `text` is for people; no message contains the address of the webhook, a value from the environment or a
password. Metrics of `nevermore run` are in `cli/watch.py`.
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
from typing import Any

from nevermore.pipelines.errors import PipelineError
from nevermore.scan_core.io import hide_secrets, require_package

OTLP_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""OpenTelemetry's own variable with the address of a collector; setting it switches exports on."""
FACTS = ("table", "run", "snapshot")
"""Facts of every log line as JSON, if they are known."""
_KNOWN: ContextVar[Mapping[str, str | int]] = ContextVar("facts", default=MappingProxyType({}))
TIMEOUT_SECONDS = 10.0
MAX_TRIES = 3
MAX_TEXT = 2_000
"""Characters of an error in a message; chat services cut longer ones."""
_PASSING = (429, 500, 502, 503, 504)
"""Answers after which a service is asked again."""


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


def shown(webhook: str, text: str) -> str:
    """A text as a message may contain it: short, without secrets and without the address."""
    return hide_secrets(text).replace(webhook, "***")[:MAX_TEXT]


def post(webhook: str, message: Mapping[str, Any]) -> None:
    """Post a message to an address.

    Raises:
        PipelineError: it could not be delivered.
    """
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    retry = Retry(total=MAX_TRIES - 1, backoff_factor=0.5, status_forcelist=_PASSING, allowed_methods=None)
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    try:
        with session:
            answer = session.post(webhook, json=message, timeout=TIMEOUT_SECONDS)
    except requests.RequestException as error:
        # not `from error`: its text contains the address
        raise PipelineError(f"the alert could not be posted: {type(error).__name__}") from None
    if not answer.ok:
        raise PipelineError(f"the webhook answered an alert with HTTP status {answer.status_code}")
