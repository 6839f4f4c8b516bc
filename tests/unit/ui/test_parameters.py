"""The parameters of a request: wrong ones get a text that says what is right."""

import re

import pytest

from timer_service.ui.parameters import BadParameterError, Parameters

KNOWN = {"tenant", "id", "due"}


def parameters(**values: str) -> Parameters:
    return Parameters(list(values.items()), KNOWN)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("1970-01-01T00:01", 60_000),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-02", 86_400_000),
        ("1970-01-01T01:00:00.5+01:00", 500),
    ],
)
def test_instants(text: str, at: int) -> None:
    """An instant may be as a form sends it, in UTC, or have an offset."""
    assert parameters(due=text).instant("due") == at


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([("nope", "1")], "This page has no parameter “nope”. Its parameters: due, id, tenant."),
        ([("id", "a"), ("id", "b")], "“id” is given more than once"),
        ([("tenant", "acme"), ("id", "x" * 2000)], "“id” must have 1 to 200 characters"),
        ([("id", "x" * 2001)], "“id” has more than 2,000 characters"),
        ([("tenant", "a b")], "“tenant” must have 1 to 64 letters"),
        ([("tenant", "acme"), ("id", "x" * 201)], "“id” must have 1 to 200 characters"),
        ([("tenant", "acme"), ("id", "a\x01")], "“id” must have 1 to 200 characters"),
        ([("tenant", "acme"), ("id", "a\0")], "“id” has the character NUL"),
        ([("due", "tomorrow")], "“due” must be an ISO 8601 instant with an offset"),
        ([("due", "0000-01-01")], "“due” must be between"),
    ],
)
def test_wrong_parameters(pairs: list[tuple[str, str]], text: str) -> None:
    """Each wrong parameter has a clear text."""
    with pytest.raises(BadParameterError, match=re.escape(text)):
        read(Parameters(pairs, KNOWN))


def read(given: Parameters) -> None:
    given.instant("due")
    given.key()
