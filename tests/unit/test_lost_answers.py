"""Which commands count as lost after an empty command."""

from timer_service.adapters.nats.headers import RawHeaders
from timer_service.adapters.nats.lost_answers import LostAnswers, Progress
from timer_service.adapters.nats.stored import Receipt, StoredMessage, read_receipt

REPLY = "$JS.ACK.TIMER_CMD.timer-service.1.10.15.17.80"
EMPTY = StoredMessage("timer.cmd.v1.acme.any", b"", RawHeaders(b""), read_receipt(REPLY), REPLY, 21)


def after_empty(*arrived: int, reply: str = REPLY, newest: int = 10) -> LostAnswers:
    """Begin with the empty command 10. Other commands arrive after it."""
    lost = LostAnswers(EMPTY._replace(reply=reply), newest, [10])
    for sequence in arrived:
        lost.arrive(Receipt(attempt=1, sequence=sequence, delivery=1, stored_at=1, waiting=0))
    return lost


def sequences(replies: list[str]) -> list[int]:
    return [read_receipt(reply).sequence for reply in replies]


def test_first_look() -> None:
    """What was delivered after the empty command and has not arrived is lost. Without a fence nothing is."""
    assert sequences(after_empty().find(Progress(sequence=13, delivery=18, settled=9))) == [11, 12, 13]
    assert after_empty(11, 12, 13).find(Progress(sequence=13, delivery=18, settled=9)) == []
    assert after_empty().find(Progress(sequence=10, delivery=15, settled=9)) == []


def test_an_empty_command_that_comes_again() -> None:
    """Other commands that come again are lost with it. They may be older than commands that have arrived."""
    lost = LostAnswers(EMPTY, newest=40, arrived=[6, 10, *range(14, 41)])
    assert sequences(lost.find(Progress(sequence=42, delivery=60, settled=4))) == [5, 7, 8, 9, 11, 12, 13, 41, 42]


def test_second_look() -> None:
    """Commands that were lost after the first look are returned, and again those that have not come since."""
    lost = after_empty()
    lost.find(Progress(sequence=13, delivery=18, settled=9))
    for sequence in (11, 12, 14, 17):
        lost.arrive(Receipt(attempt=2, sequence=sequence, delivery=1, stored_at=1, waiting=0))
    assert sequences(lost.find(Progress(sequence=18, delivery=30, settled=12))) == [13, 15, 16, 18]


def test_settled_commands_are_not_lost() -> None:
    """Other instances have settled commands meanwhile. They are not returned."""
    assert sequences(after_empty().find(Progress(sequence=30, delivery=40, settled=28))) == [29, 30]


def test_a_look_that_comes_late() -> None:
    """A look that comes very late returns a limited number of commands."""
    found = sequences(after_empty().find(Progress(sequence=10_000_000, delivery=10_000_000, settled=9)))
    assert (found[0], found[-1]) == (11, 20_010)


def test_an_old_command_that_is_not_settled() -> None:
    """If an old command is not settled for a long time, not all newer ones are returned."""
    lost = after_empty(newest=10_000_000)
    found = sequences(lost.find(Progress(sequence=10_000_000, delivery=10_000_000, settled=9)))
    assert (found[0], found[-1]) == (9_980_001, 10_000_000)


def test_reply_subjects() -> None:
    """A lost command is returned with its sequence and a number of a delivery that the server knows."""
    with_domain = "$JS.ACK.hub.hash.TIMER_CMD.timer-service.3.10.15.17.80.random"
    progress = Progress(sequence=11, delivery=16, settled=9)
    assert [after_empty(reply=reply).find(progress) for reply in (REPLY, with_domain)] == [
        ["$JS.ACK.TIMER_CMD.timer-service.1.11.16.17.80"],
        ["$JS.ACK.hub.hash.TIMER_CMD.timer-service.1.11.16.17.80.random"],
    ]
