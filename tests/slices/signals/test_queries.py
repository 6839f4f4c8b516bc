from typing import Any

from tests.harness.signals import SignalConversation


async def pages(signals: SignalConversation, name: str, listed: str, field: str, **question: Any) -> list[list[str]]:
    """Ask for page after page; return what each has in a field."""
    found = []
    while True:
        page = await signals.ask(name, **question)
        found.append([view[field] for view in page[listed]])
        if "cursor" not in page:
            return found
        question["cursor"] = page["cursor"]


async def test_lists_page_by_page(signals: SignalConversation) -> None:
    """Signals come in order of their ids, firings and tasks oldest first, each once, in pages of the size asked for."""
    for number in (3, 1, 5, 2, 4):
        await signals.create(f"signal-{number}")
    for event in ("a", "b", "c"):
        await signals.transition(eventId=event)
        await signals.run()
        await signals.about("Activate", "signal-1")
        await signals.until(signals.now() + 1)
    listed = await pages(signals, "list-signals", "signals", "signalId", limit=2)
    fired = await pages(signals, "list-firings", "firings", "dedupeKey", signalId="signal-1", limit=2)
    tasks = await pages(signals, "list-tasks", "tasks", "signalId", workItemId="item-1", limit=5)
    assert listed == [["signal-1", "signal-2"], ["signal-3", "signal-4"], ["signal-5"]]
    assert fired == [["a", "b"], ["c"]]
    assert [len(page) for page in tasks] == [5, 2]
    assert tasks[1] == ["signal-1", "signal-1"]


FILTERED: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["one", "three", "two"]),
    ({"status": "active"}, ["one"]),
    ({"status": "paused"}, ["two"]),
    ({"status": "resolved"}, []),
    ({"workItemId": "item-2"}, ["three", "two"]),
    ({"workItemId": "item-2", "status": "cancelled"}, ["three"]),
    ({"workItemId": "nothing"}, []),
]


async def test_filters(signals: SignalConversation) -> None:
    """A list has the signals of the status and the work item asked for, whatever their status if none is."""
    await signals.create("one")
    await signals.create("two", "item-2")
    await signals.create("three", "item-2")
    await signals.about("Pause", "two")
    await signals.about("Cancel", "three")
    await signals.about("Cancel", "tombstone")
    pages = [(await signals.ask("list-signals", **question))["signals"] for question, _ in FILTERED]
    assert [[view["signalId"] for view in page] for page in pages] == [names for _, names in FILTERED]


async def test_a_tenant_sees_only_its_own(signals: SignalConversation) -> None:
    """No question shows another tenant's signals, firings or tasks, whatever it names."""
    await signals.create()
    await signals.transition()
    await signals.run()
    answers = [
        await signals.ask("list-signals", tenant=f"{signals.tenant}-other"),
        await signals.ask("list-firings", tenant=f"{signals.tenant}-other", signalId="signal-1"),
        await signals.ask("list-tasks", tenant=f"{signals.tenant}-other", workItemId="item-1"),
    ]
    refused = await signals.ask("get-signal", tenant=f"{signals.tenant}-other", signalId="signal-1")
    assert answers == [{"signals": []}, {"firings": []}, {"tasks": []}]
    assert refused["error"]["code"] == "NOT_FOUND"


WRONG: list[tuple[str, str, dict[str, Any]]] = [
    ("signalId", "get-signal", {}),
    ("status", "list-signals", {"status": "done"}),
    ("cursor", "list-signals", {"cursor": "Wzdd"}),
    ("cursor", "list-firings", {"signalId": "signal-1", "cursor": "WyJhIl0="}),
    ("limit", "list-firings", {"signalId": "signal-1", "limit": 1001}),
    ("workItemId", "list-tasks", {"signalId": "signal-1"}),
]


async def test_wrong_field(signals: SignalConversation) -> None:
    """A field that is wrong, missing or not known is answered with its name."""
    found = [(await signals.ask(name, **question))["error"]["errors"] for _, name, question in WRONG]
    assert [errors[0]["path"] for errors in found] == [path for path, _, _ in WRONG]
