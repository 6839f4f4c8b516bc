from typing import Any

from tests.harness.signals import SignalConversation


async def pages(signals: SignalConversation, name: str, list_field: str, field: str, **query: Any) -> list[list[str]]:
    """Return the values of one field for all pages of a list."""
    found = []
    while True:
        page = await signals.ask(name, **query)
        found.append([view[field] for view in page[list_field]])
        if "cursor" not in page:
            return found
        query["cursor"] = page["cursor"]


async def test_pages(signals: SignalConversation) -> None:
    """Signals are listed in order of their ids, firings and tasks oldest first, in pages of the given size."""
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
    ({}, ["one", "two", "three"]),
    ({"status": "active"}, ["one"]),
    ({"status": "resolved"}, []),
    ({"workItemId": "item-2"}, ["two", "three"]),
    ({"workItemId": "item-2", "status": "cancelled"}, ["three"]),
    ({"workItemId": "nothing"}, []),
]


async def test_filters_and_tenants(signals: SignalConversation) -> None:
    """A list has the signals of a status and work item, those that have ended last. No query shows other tenants'."""
    await signals.create("one")
    await signals.create("two", "item-2")
    await signals.create("three", "item-2")
    await signals.about("Pause", "two")
    await signals.about("Cancel", "three")
    await signals.transition()
    await signals.run()
    await signals.about("Activate", "one")
    pages = [(await signals.ask("list-signals", **query))["signals"] for query, _ in FILTERED]
    assert [[view["signalId"] for view in page] for page in pages] == [names for _, names in FILTERED]
    other = f"{signals.tenant}-other"
    answers = [
        await signals.ask("list-signals", tenant=other),
        await signals.ask("list-firings", tenant=other, signalId="one"),
        await signals.ask("list-tasks", tenant=other, workItemId="item-1"),
    ]
    assert answers == [{"signals": []}, {"firings": []}, {"tasks": []}]
    assert (await signals.ask("get-signal", tenant=other, signalId="one"))["error"]["code"] == "NOT_FOUND"


WRONG: list[tuple[str, str, dict[str, Any]]] = [
    ("signalId", "get-signal", {}),
    ("status", "list-signals", {"status": "done"}),
    ("cursor", "list-signals", {"cursor": "Wzdd"}),
    ("cursor", "list-firings", {"signalId": "signal-1", "cursor": "WyJhIl0="}),
    ("limit", "list-firings", {"signalId": "signal-1", "limit": 1001}),
    ("workItemId", "list-tasks", {"signalId": "signal-1"}),
]


async def test_wrong_field(signals: SignalConversation) -> None:
    """A wrong, missing or unknown field is rejected with its name."""
    found = [(await signals.ask(name, **query))["error"]["errors"] for _, name, query in WRONG]
    assert [errors[0]["path"] for errors in found] == [path for path, _, _ in WRONG]
