"""The rule for the subjects of replies, and the bodies of replies."""

import json
from collections.abc import Sequence

import pytest

from tests.harness.memory_broker import MemoryBroker
from timer_service.core.intake.replies import may_reply_to, reply_body, send_replies
from timer_service.core.intake.route import CommandResult, View
from timer_service.core.limits.quotas import Excess
from timer_service.core.ports.broker import Reply
from timer_service.core.values.stored_json import RawJson

REFUSED = (
    *(None, "", "_INBOX", "_INBOX.", "_inbox.a", "timer.evt.v1.acme.due-time-reached", "_INBOX..a", "_INBOX.a."),
    *("_INBOX.a b", "_INBOX.a\r\nPUB x 0", "_INBOX.a\u00a0b", "_INBOX.a\x00", "_INBOX.*", "_INBOX.a.>"),
    *("_INBOX." + "x" * 506, "_INBOX.\u00e9", "_INBOX." + "\u00e9" * 300, "_INBOX.a\udcff"),
)


@pytest.mark.parametrize(
    ("subject", "allowed"),
    [
        *((subject, True) for subject in ("_INBOX.a", "_INBOX.a.x1.2", "_R_.8kXp.1", "_INBOX." + "x" * 505)),
        *((subject, False) for subject in REFUSED),
    ],
)
def test_subjects(subject: str | None, *, allowed: bool) -> None:
    """A reply is sent to a subject with one of the prefixes, of at most 512 bytes, that a broker accepts."""
    assert may_reply_to(subject, ("_INBOX.", "_R_.")) is allowed


@pytest.mark.parametrize(
    ("result", "body"),
    [
        (CommandResult("ignored"), b'{"commandId":"c-\\"1","outcome":"ignored"}'),
        (
            CommandResult("scheduled", view=lambda: {"timer": RawJson('{"data":1.50E+2}')}),
            b'{"commandId":"c-\\"1","outcome":"scheduled","timer":{"data":1.50E+2}}',
        ),
        (
            CommandResult("over_quota", view=Excess("pending_timers", 5).view),
            b'{"commandId":"c-\\"1","outcome":"over_quota","limit":{"name":"pending_timers","most":5}}',
        ),
    ],
)
def test_bodies(result: CommandResult, body: bytes) -> None:
    """The reply to a command has its id, its outcome and the fields of the view. Stored JSON is copied as it is."""
    assert reply_body('c-"1', result) == body


class Recorder(MemoryBroker):
    """Records the sizes of the replies that were sent together, and how many bodies existed then."""

    def __init__(self) -> None:
        super().__init__()
        self.built = 0
        self.sent: list[tuple[int, int]] = []

    async def reply(self, replies: Sequence[Reply]) -> None:
        self.sent.append((sum(len(each.body) for each in replies), self.built))
        await super().reply(replies)


async def test_large_replies() -> None:
    """Replies are built and sent 1 MiB at a time: those of a batch may have 64 MB together."""
    broker = Recorder()

    def view() -> dict[str, RawJson]:
        broker.built += 1
        return {"timer": RawJson(f'"{"x" * 65_536}"')}

    results = [("_INBOX.a", str(number), CommandResult("requeued", view=view)) for number in range(40)]
    await send_replies(broker, results)
    assert [built for _, built in broker.sent] == [16, 32, 40]
    assert max(size for size, _ in broker.sent) < 1024 * 1024 + 70_000
    assert [json.loads(each.body)["commandId"] for each in broker.replies] == [str(number) for number in range(40)]


async def test_reply_whose_view_cannot_be_built(caplog: pytest.LogCaptureFixture) -> None:
    """The command has been applied, so its reply has the outcome. The other replies are sent, too."""
    broker = MemoryBroker()

    def fail() -> dict[str, object]:
        raise ValueError("year 31690708 is out of range")

    views: dict[str, View] = {"first": dict, "damaged": fail, "lone": lambda: {"timer": {"id": "\ud800"}}, "last": dict}
    await send_replies(broker, [("_INBOX.a", name, CommandResult("done", view=view)) for name, view in views.items()])
    found = [json.loads(each.body) for each in broker.replies]
    assert found == [{"commandId": name, "outcome": "done"} for name in views]
    assert [vars(record)["command_id"] for record in caplog.records] == ["damaged", "lone"]
    assert "31690708" not in str([vars(record)["reason"] for record in caplog.records])
