"""Spans of commands and events, recorded by an OpenTelemetry SDK."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider, SpanContext, SpanKind, StatusCode

from tests.harness.builders import raw_command
from timer_service.adapters.tracing import Tracing
from timer_service.core.intake.apply import Applied, Done
from timer_service.core.intake.rejection import Rejected
from timer_service.core.intake.route import CommandResult, Route
from timer_service.core.ports.broker import PUBLISHED, PublishResult, PublishStatus
from timer_service.core.ports.database import Transaction
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import Command, Message, Trace
from timer_service.core.values.raw_command import MESSAGE_ID, RawCommand
from timer_service.timers.messages import CancelTimer

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
"""The context of the span of a user."""


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider.get_tracer("test"))


def event(headers: Mapping[str, str]) -> Message:
    return Message(Address(Kind.EVENT, "acme", "due-time-reached"), "event-1", b"{}", headers)


def ids(context: SpanContext | None) -> tuple[str, str]:
    """Return the ids of a trace and a span, in the form of a traceparent."""
    assert context is not None
    return format(context.trace_id, "032x"), format(context.span_id, "016x")


async def fire(tracing: Tracing, result: PublishResult, headers: Mapping[str, str]) -> Message:
    """Publish an event. Return it as the broker gets it."""
    sent: list[Message] = []

    async def publish(messages: Sequence[Message]) -> Sequence[PublishResult]:
        sent.extend(messages)
        return [result] * len(messages)

    assert await tracing.trace_events(publish)([event(headers)]) == [result]
    (message,) = sent
    return message


async def test_event_begins_a_trace_that_links_to_its_command(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    """The event carries the context of the span `fire`, which links to the span of the command."""
    message = await fire(tracing, PUBLISHED, {"traceparent": TRACEPARENT, "tracestate": "user=1"})
    (span,) = exporter.get_finished_spans()
    (link,) = span.links
    own_trace, own_id = ids(span.get_span_context())
    assert (span.name, span.kind, span.parent) == ("fire", SpanKind.PRODUCER, None)
    assert ids(link.context) == (TRACE, PARENT)
    assert own_trace != TRACE
    assert list(message.headers) == ["traceparent"]
    assert message.headers["traceparent"].startswith(f"00-{own_trace}-{own_id}-")
    assert span.status.is_unset
    assert dict(span.attributes or {}) == {
        "messaging.system": "nats",
        "messaging.operation.name": "fire",
        "messaging.operation.type": "send",
        "messaging.destination.name": "due-time-reached",
        "messaging.message.id": "event-1",
        "timer.tenant": "acme",
    }


async def test_event_that_is_not_sampled() -> None:
    """It carries the context of its command, as without an SDK."""
    tracing = Tracing(TracerProvider(sampler=ALWAYS_OFF).get_tracer("test"))
    headers = {"traceparent": TRACEPARENT, "tracestate": "user=1"}
    assert await fire(tracing, PUBLISHED, headers) == event(headers)


@pytest.mark.parametrize(("provider", "traces"), [(TracerProvider, True), (NoOpTracerProvider, False)])
def test_process_without_an_sdk(monkeypatch: pytest.MonkeyPatch, provider: type[Any], *, traces: bool) -> None:
    """Only a process with an SDK has spans."""
    monkeypatch.setattr(trace, "get_tracer_provider", provider)
    assert (Tracing.of_process() is not None) == traces


async def test_event_that_is_not_stored(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    """Its span says why: the broker refused it, or the answer of the broker did not come."""

    async def cancel(_messages: Sequence[Message]) -> Sequence[PublishResult]:
        raise asyncio.CancelledError

    await fire(tracing, PublishResult(PublishStatus.REFUSED, "too large"), {})
    with pytest.raises(asyncio.CancelledError):
        await tracing.trace_events(cancel)([event({})])
    reasons = [span.status.description for span in exporter.get_finished_spans()]
    assert reasons == ["refused: too large", "cancelled before the broker answered"]


BEGAN = 5_000


async def handle(_tx: Transaction, _commands: Sequence[Command], _now: int) -> Sequence[CommandResult]:
    raise NotImplementedError


async def wake(_at: int, _loop: str | None) -> None:
    """Wake no loop."""


def done_with(raw: RawCommand, *, rejected: bool) -> Done:
    """Return what a transaction has done that applied or rejected a command."""
    if rejected:
        return Done(1, rejected=[Rejected(raw, Rejection(Code.INVALID_JSON, "no"), None)])
    command = Command(
        "command-1", CancelTimer(tenant_id="acme", service_call_id="call-1"), raw.position, None, Trace(), None
    )
    return Done(1, [Applied(Route((CancelTimer,), handle, wake), [raw], [command], [CommandResult("cancelled")])])


@pytest.mark.parametrize("stored_at", [1_000, 9_000], ids=["before", "by a clock that is ahead"])
@pytest.mark.parametrize(("rejected", "failure"), [(False, None), (True, "rejected; see its dead letter")])
def test_command(
    tracing: Tracing, exporter: InMemorySpanExporter, *, rejected: bool, failure: str | None, stored_at: int
) -> None:
    """A command that was handled has the spans `receive` and `process`, which follow the span of its sender."""
    headers = {"traceparent": TRACEPARENT, MESSAGE_ID: "command-1"}
    tracing.trace_commands(done_with(raw_command(headers=headers, stored_at=stored_at), rejected=rejected), BEGAN)
    receive, process = exporter.get_finished_spans()
    assert (receive.name, process.name) == ("receive", "process")
    assert [ids(each.parent) for each in (receive, process)] == [(TRACE, PARENT)] * 2
    assert (receive.kind, process.kind) == (SpanKind.CONSUMER, SpanKind.CONSUMER)
    assert (receive.start_time, receive.end_time, process.start_time) == (min(stored_at, BEGAN), BEGAN, BEGAN)
    assert process.end_time is not None
    assert process.end_time >= BEGAN
    assert (receive.status.description, process.status.description) == (None, failure)
    assert process.status.status_code is (StatusCode.UNSET if failure is None else StatusCode.ERROR)
    assert (process.attributes or {})["messaging.message.id"] == "command-1"
