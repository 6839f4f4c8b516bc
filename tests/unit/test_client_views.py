"""What the client makes of answers of the service."""

import pytest

from timer_service.client import Timer, TimerServiceError


def test_answers_that_cannot_be_read_are_not_quoted() -> None:
    """The error names the field, but not the data of the timer: a program may log it."""
    with pytest.raises(TimerServiceError, match=r"(?s)cannot read.*dueAt") as caught:
        Timer.read({"serviceCallId": "call-1", "data": "s3cret", "dueAt": "s3cret"})
    assert "s3cret" not in str(caught.value)
