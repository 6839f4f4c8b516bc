"""Errors of commands that quote what a server has said."""

import sys
from collections.abc import Sequence

import pytest

from timer_service import cli
from timer_service.cli.tenants import usage
from timer_service.client import TimerServiceError
from timer_service.core.values.errors import StartError

HOSTILE = "refused \x1b[2J\x1b]0;owned\x07\u202e"
SHOWN = r"refused \x1b[2J\x1b]0;owned\x07\u202e"


@pytest.mark.parametrize("error", [StartError, TimerServiceError])
def test_errors_do_not_act_on_the_terminal(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Control characters in the text of a server are shown. The lines of an error stay lines."""

    def fail() -> None:
        raise error(f"one\n{HOSTILE}")

    monkeypatch.setattr(sys, "argv", ["timer-service"])
    monkeypatch.setattr(cli, "create_app", lambda _: fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == f"timer-service: one\n{SHOWN}"


class Answering:
    """A client whose service sends this answer."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    async def query(self, *_: object) -> object:
        return self.answer


@pytest.mark.parametrize(
    "answer", [{}, {"usage": 1}, {"usage": [1]}, {"usage": [{"limit": 1, "used": "x"}]}, {"usage": [{"used": 1}]}]
)
async def test_usage_reads_no_nonsense(answer: dict[str, Sequence[object]]) -> None:
    """The same of `tenants usage`."""
    with pytest.raises(TimerServiceError, match="the service sent an answer"):
        await usage(Answering(answer), "acme")
