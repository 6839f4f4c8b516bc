"""Stored JSON in messages."""

import json

import pytest
from pydantic_core import to_json

from timer_service.core.values.data import dump_data
from timer_service.core.values.stored_json import RawJson, check_stored, quote, read_stored, write_list, write_object

DATA: list[object] = [
    *(None, True, False, 0, -1, -0.5, 1e300, 1e-7, "", "x", '"', "\\"),
    "\x00\x1f\x7f\u2028\u00e9\U0001f600\r\n\t\b\f/",
    *([], {}, [[], {}], {"a": [1, {"b": None}], "": ""}),
]


@pytest.mark.parametrize("data", DATA, ids=repr)
def test_stored_data_is_unchanged(data: object) -> None:
    """Every JSON value that was stored is read as it was, alone and within a message."""
    text = dump_data(data)
    assert check_stored(text) == text
    assert json.loads(write_object({"a": 1}, {"data": read_stored(text)}).text) == {"a": 1, "data": data}
    assert not isinstance(data, str) or quote(data).encode() == to_json(data)


@pytest.mark.parametrize(
    "text", ["", "{", "}", "{oops", '{"a":1', "[1", "1]", '"', '"x', "x", "nul", "truefalse", "{]", "1,2"]
)
def test_damaged_text(text: str) -> None:
    """A text whose end does not fit its beginning, as after a truncation, is an error that shows both."""
    with pytest.raises(ValueError, match="the stored JSON is damaged"):
        check_stored(text)


def test_write_object() -> None:
    """An object has its fields in order, then the raw fields that are not None. It may be empty."""
    one = RawJson("[1]")
    written = [write_object(*each).text for each in [({}, {}), ({"a": 1}, {}), ({}, {"b": one, "c": None, "d": one})]]
    assert written == ["{}", '{"a":1}', '{"b":[1],"d":[1]}']
    assert write_object({"a": 1}, {'"b"': write_list([one, one])}).text == '{"a":1,"\\"b\\"":[[1],[1]]}'
    assert to_json({"a": [RawJson('{"b": 1}')]}) == b'{"a":[{"b":1}]}'
