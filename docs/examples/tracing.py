"""Schedules a timer in a span, handles its event in another, and prints both. docs/operations/monitor.md says more.

Run it in the folder of `timer-service dev`, or with the URL of the broker, beside a service that has an OpenTelemetry
SDK. The context of the event is that of the span `fire` of the service, which links to the span `order`.
"""

import asyncio
import sys
from datetime import timedelta

import nats
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from timer_service.client import TimerClient, find_broker


async def main(url: str | None = None) -> None:
    """Schedule a timer and wait for its event."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("orders")
    url = find_broker(url).url
    connection = await nats.connect(url)
    events = await connection.subscribe("timer.evt.v1.acme.due-time-reached")
    async with TimerClient.connect(url) as client:
        with tracer.start_as_current_span("order"):  # the client adds the context of the span to the command
            await client.timers.schedule("acme", "order-1/payment", due_in=timedelta(seconds=1))
        message = await events.next_msg(timeout=10)
        with tracer.start_as_current_span("remind", context=propagate.extract(dict(message.headers or {}))):
            print("fired:", message.subject)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
