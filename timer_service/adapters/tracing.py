"""OpenTelemetry spans of commands and events.

========= ======== ==================================== ==============================================================
span      kind     parent                               from when to when
========= ======== ==================================== ==============================================================
`receive` consumer the span that published the command  the broker stored it, its transaction began
`process` consumer the same                             its transaction began, it was committed
`fire`    producer none: it begins a new trace, which   an instance published the event, the broker stored or refused it
                   links to the span of the command
========= ======== ==================================== ==============================================================

The event carries the context of its `fire` span, or without one that of the command. The names of attributes are those
of the conventions for messaging. Only a process with an OpenTelemetry SDK has spans.
"""

import time
from collections.abc import Sequence
from itertools import zip_longest
from typing import Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from timer_service.core.intake.apply import Done
from timer_service.core.ports.broker import Publish, PublishResult, PublishStatus
from timer_service.core.values.address import Address
from timer_service.core.values.codec import read_trace
from timer_service.core.values.message import Message, Trace
from timer_service.core.values.raw_command import RawCommand

_PROPAGATOR = TraceContextTextMapPropagator()


class Tracing:
    """The spans of one process."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @classmethod
    def of_process(cls) -> Self | None:
        """Return the tracing of this process; None if it has no OpenTelemetry SDK."""
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            return None
        return cls(trace.get_tracer("timer_service"))

    def trace_commands(self, done: Done, began: int) -> None:
        """Make `receive` and `process` spans of the commands of a transaction that began at an instant, in ns."""
        now = time.time_ns()
        outcomes: list[tuple[RawCommand, str | None]] = [(raw, None) for group in done.applied for raw in group.raws]
        outcomes += [(each.raw, "rejected; see its dead letter") for each in done.rejected]
        for raw, failure in outcomes:
            self._record("receive", raw, min(raw.stored_at or began, began), began)
            self._record("process", raw, began, now, failure)

    def _record(self, operation: str, raw: RawCommand, began: int, ended: int, failure: str | None = None) -> None:
        """Make a span of a command under the span that published it. `failure`: why the command had no effect."""
        span = self._tracer.start_span(
            operation,
            context=_context(read_trace(raw.headers)),
            kind=SpanKind.CONSUMER,
            attributes=_attributes(operation, operation, raw.address, raw.message_id),
            start_time=began,
        )
        if failure is not None:
            _fail(span, failure)
        span.end(ended)

    def trace_events(self, publish: Publish) -> Publish:
        """Return `publish` with a `fire` span for each message."""

        async def publish_traced(messages: Sequence[Message]) -> Sequence[PublishResult]:
            """Publish messages with the contexts of their spans, which end with the results."""
            spans = [self._begin_fire(message) for message in messages]
            results: Sequence[PublishResult] = ()
            try:
                results = await publish([_carry(span, each) for span, each in zip(spans, messages, strict=True)])
            finally:
                for span, result in zip_longest(spans, results):  # no results if `publish` has raised an error
                    if result is None:
                        _fail(span, "cancelled before the broker answered")
                    elif result.status is not PublishStatus.PUBLISHED:
                        _fail(span, f"{result.status}: {result.reason}")
                    span.end()
            return results

        return publish_traced

    def _begin_fire(self, message: Message) -> Span:
        """Begin the `fire` span of an event, with a link to the span that its headers name, if there is one."""
        cause = trace.get_current_span(_context(Trace(*map(message.headers.get, Trace._fields)))).get_span_context()
        return self._tracer.start_span(
            "fire",
            context=Context(),
            kind=SpanKind.PRODUCER,
            links=[Link(cause)] if cause.is_valid else [],
            attributes=_attributes("fire", "send", message.address, message.id),
        )


def _context(of: Trace) -> Context:
    """Return the context of a span of another process; an empty one if there is none."""
    carrier = {name: value for name, value in of._asdict().items() if value is not None}
    return _PROPAGATOR.extract(carrier, Context())


def _carry(span: Span, message: Message) -> Message:
    """Return the message with the context of its span, if the span is recorded."""
    if not span.is_recording():
        return message
    headers = {name: value for name, value in message.headers.items() if name not in Trace._fields}
    _PROPAGATOR.inject(headers, trace.set_span_in_context(span, Context()))
    return message._replace(headers=headers)


def _attributes(operation: str, kind: str, address: Address, message_id: str) -> dict[str, str]:
    return {
        "messaging.system": "nats",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": address.message,
        "messaging.message.id": message_id,
        "timer.tenant": address.tenant,
    }


def _fail(span: Span, description: str) -> None:
    span.set_status(Status(StatusCode.ERROR, description))
