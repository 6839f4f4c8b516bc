"""Which commands count as lost after an empty command."""

from timer_service.adapters.nats.headers import RawHeaders
from timer_service.adapters.nats.lost_answers import LostAnswers, Progress
from timer_service.adapters.nats.stored import Receipt, StoredMessage, read_receipt

REPLY = "$JS.ACK.TIMER_CMD.timer-service.1.10.15.17.80"
EMPTY = StoredMessage("timer.cmd.v1.acme.any", b"", RawHeaders(b""), read_receipt(REPLY), REPLY, 21)


def arrived(lost: LostAnswers, *sequences: int) -> LostAnswers:
    for sequence in sequences:
        lost.arrive(Receipt(attempt=1, sequence=sequence, delivery=1, stored_at=1, waiting=0))
    return lost


def sequences(replies: list[str]) -> list[int]:
    return [read_receipt(reply).sequence for reply in replies]


def test_first_look() -> None:
    """What was delivered after the empty command and has not arrived is lost. Without a fence nothing is."""
    cut = arrived(LostAnswers(EMPTY, newest=10, missing=9))
    whole = arrived(LostAnswers(EMPTY, newest=10, missing=9), 11, 12, 13)
    assert sequences(cut.find(Progress(sequence=13, delivery=18))) == [11, 12, 13]
    assert whole.find(Progress(sequence=13, delivery=18)) == []
    assert LostAnswers(EMPTY, newest=10, missing=9).find(Progress(sequence=10, delivery=15)) == []


def test_an_empty_command_that_comes_again() -> None:
    """If the empty command was delivered before, only what is newer than everything that has arrived is lost."""
    assert sequences(LostAnswers(EMPTY, newest=40, missing=9).find(Progress(sequence=42, delivery=60))) == [41, 42]


def test_second_look() -> None:
    """Commands that were lost after the first look are returned, and again those that have not come since."""
    lost = LostAnswers(EMPTY, newest=10, missing=2)
    lost.find(Progress(sequence=13, delivery=18))
    arrived(lost, 11, 12, 14, 17)
    assert sequences(lost.find_again(Progress(sequence=20, delivery=30))) == [13, 15, 16], "at most 2 new ones"


def test_second_look_after_a_failed_first_one() -> None:
    """If the first look has failed, the second one finds as many commands as the pull might have brought."""
    lost = arrived(LostAnswers(EMPTY, newest=10, missing=3), 15)
    assert sequences(lost.find_again(Progress(sequence=30, delivery=40))) == [11, 12, 13]


def test_many_commands_of_other_instances() -> None:
    """A look that comes very late returns a limited number of commands, the oldest ones."""
    found = sequences(LostAnswers(EMPTY, newest=10, missing=9).find(Progress(sequence=10_000_000, delivery=10_000_000)))
    assert (found[0], found[-1]) == (11, 20_010)


def test_reply_subjects() -> None:
    """A lost command is returned with its sequence and a number of a delivery that the server knows."""
    with_domain = "$JS.ACK.hub.hash.TIMER_CMD.timer-service.3.10.15.17.80.random"
    found = [
        LostAnswers(EMPTY._replace(reply=reply), newest=10, missing=9).find(Progress(sequence=11, delivery=16))
        for reply in (REPLY, with_domain)
    ]
    assert found == [
        ["$JS.ACK.TIMER_CMD.timer-service.1.11.16.17.80"],
        ["$JS.ACK.hub.hash.TIMER_CMD.timer-service.1.11.16.17.80.random"],
    ]
