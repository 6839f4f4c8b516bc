"""Converts JSON data to the type that a function declares."""

from typing import Any


def read_data(kind: Any, data: Any, what: str) -> Any:
    """Return JSON data as the type `kind`. Raises ValueError, with `what` as the subject, that names wrong fields."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - it takes longer to import than the client

    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)[:3]
        reason = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in faults)
        raise ValueError(f"{what} is no {getattr(kind, '__name__', kind)}: {reason}") from None
