"""Users' data: values of many types become JSON, and come back as the declared type."""

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

import timer_service.client
from timer_service.client.convert import read_data, returned_type, second_type, to_json


class Colour(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


class Model(BaseModel):
    model_config = ConfigDict(strict=True)

    at: datetime = Field(alias="atTime")


@dataclass(frozen=True)
class Order:
    id: UUID
    total: Decimal
    lines: tuple[int, ...]
    model: Model
    colour: Colour | None = None


AT = datetime(2030, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
ORDER = Order(UUID(int=7), Decimal("1.10"), (1, 2), Model(atTime=AT), Colour.RED)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, ORDER),
        (list[Order], [ORDER, ORDER]),
        (Model, Model(atTime=AT)),
        (Point, Point(1, 2)),
        (Colour, Colour.RED),
        (datetime, AT),
        (timedelta, timedelta(seconds=1.5)),
        (dict[str, set[int]], {"a": {1, 2}}),
        (int | None, None),
        (None, None),
    ],
)
def test_values_come_back(kind: Any, value: Any) -> None:
    assert read_data(kind, from_json(to_json(value)), "the value") == value


def test_plain_json_stays_as_it_is() -> None:
    """Without a type, data come back as JSON has them. JSON keeps all digits of an integer."""
    value = {"a": [1, 2.5, None, True, "ü\n"], "n": 10**30}
    assert read_data(Any, from_json(to_json(value)), "the value") == value
    assert to_json({"at": AT, "order": [ORDER]})[:40] == '{"at":"2030-01-02T03:04:05.678901Z","ord'


@pytest.mark.parametrize("value", [float("nan"), {"a": [float("inf")]}, object(), b"1", [b"1"], {AT: 1}, {(1, 2): 1}])
def test_values_that_are_no_json(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        to_json(value)


def test_data_of_another_form() -> None:
    """The error names what is wrong and the fields, and has no values: they may be secret."""
    fields = r"id: .*UUID.*; total: Field required; lines: "
    with pytest.raises(ValueError, match=f"^the input is no Order: {fields}") as raised:
        read_data(Order, {"id": 5, "secret": "xyz"}, "the input")
    assert "xyz" not in str(raised.value)
    assert raised.value.__cause__ is None


class Callable_:  # noqa: N801 - an object that can be called
    total: int

    def __call__(self, _: Any, order: "Order") -> "Later":
        raise NotImplementedError


async def workflow(_: Any, order: "Order") -> "Later":
    raise NotImplementedError


class Later:
    """A type that is defined after the functions that name it."""


@pytest.mark.parametrize("function", [workflow, partial(workflow), Callable_()])
def test_declared_types(function: Any) -> None:
    assert (second_type(function), returned_type(function)) == (Order, Later)


def test_types_that_are_not_declared() -> None:
    def unknown() -> "Missing": ...  # type: ignore[name-defined]  # noqa: F821

    assert [returned_type(each) for each in (print, lambda: 1, partial(int))] == [Any, Any, Any]
    assert second_type(lambda only: only) is Any
    with pytest.raises(ValueError, match=r"the annotation 'Missing' of .*unknown is not defined"):
        returned_type(unknown)


def test_the_client_imports_little() -> None:
    """Plain JSON is written and read without the modules that take long to import. All names can be imported."""
    slow = {"aiosqlite", "asyncpg", "pydantic", "sqlite3", "typer", "zoneinfo"}
    program = (
        "import sys, typing, timer_service.client; from timer_service.client import convert;"
        "convert.read_data(typing.Any, {}, ''); convert.to_json({'a': [1]});"
        f"print({slow} & {{*sys.modules}}); from timer_service.client import *; print(SqliteSeen.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout == "set()\nSqliteSeen\n"
    with pytest.raises(AttributeError, match=r"module 'timer_service.client' has no attribute 'Missing'"):
        _ = timer_service.client.Missing  # type: ignore[attr-defined]
