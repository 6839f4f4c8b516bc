"""The rule for the subjects of replies."""

import pytest

from timer_service.core.replies import may_reply_to


@pytest.mark.parametrize("subject", ["_INBOX.a", "_INBOX.tenant-a.x1.2", "_R_.8kXp.1", "_INBOX." + "x" * 505])
def test_inboxes(subject: str) -> None:
    """A reply may be sent to a subject with one of the prefixes, of at most 512 bytes."""
    assert may_reply_to(subject, "_INBOX.", "_R_.")


@pytest.mark.parametrize(
    "subject",
    [
        None,
        "",
        "_INBOX",
        "_INBOX.",
        "_inbox.a",
        "timer.evt.v1.acme.due-time-reached",
        "_INBOX.tenant-a..",
        "_INBOX..a",
        "_INBOX.a.",
        "_INBOX.a b",
        "_INBOX.a\r\nPUB x 0",
        "_INBOX.a\u00a0b",
        "_INBOX.a\x00",
        "_INBOX.*",
        "_INBOX.a.>",
        "_INBOX." + "x" * 506,
        "_INBOX.\u00e9",
        "_INBOX." + "\u00e9" * 300,
    ],
)
def test_other_subjects(subject: str | None) -> None:
    """No reply is sent to a subject that is not an inbox, that is too long, or that a broker denies."""
    assert not may_reply_to(subject, "_INBOX.", "_R_.")


def test_undecodable_subject() -> None:
    """No reply is sent to a subject whose bytes were not UTF-8, and asking raises nothing."""
    assert not may_reply_to("_INBOX.a\udcff", "_INBOX.")
