"""JSON that users hand in: kept as text, and no larger than is promised."""

import json

from pydantic_core import PydanticCustomError

MAX_DATA_BYTES = 64 * 1024


def dump_data(data: object) -> str:
    """Write `data` as compact JSON text, as it is stored. Raises ValueError for numbers JSON does not have."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def check_fits(data: object) -> object:
    """Return `data` if its JSON has at most 64 KiB. Raises `PydanticCustomError`."""
    try:
        size = len(dump_data(data).encode())
    except ValueError as error:
        raise PydanticCustomError("data", "has a number that JSON can't hold") from error
    if size > MAX_DATA_BYTES:
        raise PydanticCustomError(
            "too_large",
            "has {size} bytes of JSON; at most {most} are taken",
            {"size": size, "most": MAX_DATA_BYTES},
        )
    return data
