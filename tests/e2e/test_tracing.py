"""The trace of a timer, printed by the service and by docs/examples/tracing.py."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.harness.processes import NatsServer, Service
from tests.harness.spawn import BIN

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "tracing.py"


class TracedService(Service):
    """The service with an OpenTelemetry SDK, which prints the spans."""

    def __init__(self, folder: Path, broker_url: str) -> None:
        exporters = {"TRACES": "console", "METRICS": "none", "LOGS": "none"}
        super().__init__(folder, broker_url, **{f"OTEL_{name}_EXPORTER": each for name, each in exporters.items()})
        self.command = [sys.executable, str(BIN / "opentelemetry-instrument"), *self.command]


def spans(text: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the printed spans by their names."""
    found, decoder = {}, json.JSONDecoder()
    for start in [at for at in range(len(text)) if text.startswith("{\n", at) and text[at - 1 : at] in {"", "\n"}]:
        span = decoder.raw_decode(text, start)[0]
        found[span["name"]] = span
    return found


@pytest.mark.slow
async def test_trace_of_a_timer(tmp_path: Path, broker: NatsServer) -> None:
    """The user's span leads to `receive` and `process`, and by a link to `fire`, which leads to the consumer's span."""
    service = TracedService(tmp_path / "service", broker.url)
    async with service:
        example = await asyncio.create_subprocess_exec(
            sys.executable, str(EXAMPLE), broker.url, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await example.communicate()
        assert example.returncode == 0
        assert await service.terminate() == 0  # which exports the spans
    users, own = spans(output.decode()), spans(service.log.read_text())
    order, remind = users["order"], users["remind"]
    receive, process, fire = own["receive"], own["process"], own["fire"]
    for span in (receive, process):
        assert span["parent_id"] == order["context"]["span_id"]
        assert span["context"]["trace_id"] == order["context"]["trace_id"]
    (link,) = fire["links"]
    assert link["context"]["span_id"] == order["context"]["span_id"]
    assert fire["parent_id"] is None
    assert fire["context"]["trace_id"] != order["context"]["trace_id"]
    assert remind["parent_id"] == fire["context"]["span_id"]
    assert remind["context"]["trace_id"] == fire["context"]["trace_id"]
