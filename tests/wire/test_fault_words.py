"""The words in which faults of commands and queries are told: never those of the validation library."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from tests.harness.cases import case
from timer_service.app.slices import SLICES
from timer_service.core.values.codec import rejection_of
from timer_service.core.values.errors import Code
from timer_service.core.values.message import Envelope
from timer_service.workflows.protocol import ReportTasks

WRONG: tuple[Any, ...] = (
    None,
    True,
    1.5,
    -(10**20),
    "",
    "a\0",
    "x" * 3000,
    [],
    [None],
    ["a\0"],
    {},
    {"a": 1},
    [{}],
    [{"name": "a\0"}],
    [{"workflowId": "a", "token": "a", "steps": ["a\0"], "waits": [{"key": "a:0"}], "then": {"action": "a"}}],
    [{"then": {}}],
)
FOREIGN = re.compile(
    r"dictionary|instance|pattern|\\x|unable|validation|after|Input|Value|String|List|should|None|function|union|tuple"
)


def models() -> Iterator[type[BaseModel]]:
    """Yield every shape that users send."""
    yield Envelope
    for each in SLICES:
        yield from each.commands
        yield from (route.request for route in each.queries)
        yield from (route.request for route in each.requests)


def reasons(model: type[BaseModel], document: Any) -> list[str]:
    try:
        model.model_validate(document)
    except ValidationError as error:
        return [fault.reason for fault in rejection_of(Code.INVALID_PAYLOAD, "the payload", error).faults]
    return []


def test_faults_are_told_in_words_of_users() -> None:
    """Whatever is wrong with a field, the reason names no class, pattern or type of Python."""
    for model in models():
        with case(model.__name__):
            documents: list[Any] = [None, [], "text", *({name: value} for name in names(model) for value in WRONG)]
            for document in documents:
                for reason in reasons(model, document):
                    assert not FOREIGN.search(reason), (document, reason)


@pytest.mark.parametrize("tag", ["\n", " x" * 200 + "\n", "Input tag '" * 200 + "\n", "x' found using 'x"])
def test_a_report_with_an_unknown_action_is_not_quoted(tag: str) -> None:
    """The library quotes it whole. The search of 64 KB with a line break took 9 s of the event loop."""
    found = reasons(ReportTasks, {"workerId": "a", "reports": [{"then": {"action": tag}}]})
    assert "needs action to be one of 'continue', 'park', 'complete', 'fail', 'release'" in found


def names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]
