"""Converts users' data: what a program gives becomes JSON, and JSON becomes the type that a function declares.

Beside plain JSON values, these can be used: dataclasses, pydantic models, NamedTuple, Enum, datetime, timedelta, UUID
and Decimal.

pydantic is imported when the first of them is used: it takes longer to import than the rest of the client.
"""

import json
import sys
from collections.abc import Callable
from functools import cache, partial
from inspect import isroutine, signature, unwrap
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

_MOST_FAULTS = 3


def to_json(value: Any) -> str:
    """Return a value as compact JSON text. Raises ValueError or TypeError if JSON cannot hold it."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain)


def read_data(kind: Any, data: Any, what: str) -> Any:
    """Return JSON data as the type `kind`, such as a dataclass or `list[UUID]`; `Any` returns the data as they are.

    Raises ValueError, with `what` as the subject, that names the fields that do not fit, without their values.
    """
    if kind is Any:
        return data
    from pydantic import ValidationError  # noqa: PLC0415 - see the module docstring

    try:
        return adapter(kind).validate_json(json.dumps(data))
    except ValidationError as error:
        reason = f"{what} is no {getattr(kind, '__name__', kind)}: {describe(error)}"
        raise ValueError(reason) from None  # the error of pydantic has the data, which may be secret


def returned_type(function: Callable[..., Any]) -> Any:
    """Return the declared type of a function's result, or `Any`. Raises ValueError if its name is not defined."""
    return _declared(function, "return")


def second_type(function: Callable[..., Any]) -> Any:
    """Return the declared type of a function's second parameter, or `Any`. Raises ValueError as `returned_type`."""
    names = list(signature(function).parameters)
    return _declared(function, names[1]) if len(names) > 1 else Any


def code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that runs when something is called: that of a partial, or the `__call__` of an object."""
    while isinstance(function, partial):
        function = function.func
    return function if isroutine(function) else type(function).__call__


def describe(error: "ValidationError") -> str:
    """Return the first wrong fields in one line, without their values."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)[:_MOST_FAULTS]
    named = [(".".join(map(str, each["loc"])), each["msg"]) for each in faults]
    return "; ".join(f"{path}: {text}" if path else text for path, text in named)


def _plain(value: Any) -> Any:
    """Return JSON data for a value that `json` does not know. Bytes have no form in JSON that is obvious."""
    if isinstance(value, bytes | bytearray):
        raise TypeError("bytes are not JSON: decode them first")
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 - see the module docstring

    return to_jsonable_python(value, by_alias=True)


def _declared(function: Callable[..., Any], name: str) -> Any:
    """Return the declared type of a parameter, or of the result (`return`), of anything that can be called.

    An annotation that is a text is looked up among the variables of its module.
    """
    function = unwrap(code_of(unwrap(function)))
    kind = getattr(function, "__annotations__", {}).get(name, Any)
    if not isinstance(kind, str):
        return type(None) if kind is None else kind
    variables = getattr(function, "__globals__", None) or vars(sys.modules[function.__module__])
    holder = type("holder", (), {"__annotations__": {name: kind}})  # the other annotations may not be defined
    try:
        return get_type_hints(holder, variables, include_extras=True)[name]
    except NameError as error:
        raise ValueError(f"the annotation {kind!r} of {function.__qualname__} is not defined: {error}") from error


@cache
def adapter(kind: Any) -> "TypeAdapter[Any]":
    """Return what reads values of a type."""
    from pydantic import TypeAdapter  # noqa: PLC0415 - see the module docstring

    return TypeAdapter(kind)
