"""User data: JSON that is stored as text, up to a size limit."""

from json.encoder import JSONEncoder, c_make_encoder, encode_basestring  # type: ignore[attr-defined]

from pydantic_core import PydanticCustomError, to_json

MAX_DATA_BYTES = 64 * 1024
_ENCODER = JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"))
_encode_at_once = c_make_encoder and c_make_encoder(
    None, _ENCODER.default, encode_basestring, None, ":", ",", _ENCODER.sort_keys, _ENCODER.skipkeys, _ENCODER.allow_nan
)
"""What `JSONEncoder.encode` makes for each call, which takes as long as to encode a small object. None without C."""


def dump_data(data: object) -> str:
    """Return `data` as the compact JSON text that is stored. Raises ValueError for numbers that JSON cannot hold."""
    return _ENCODER.encode(data) if _encode_at_once is None else "".join(_encode_at_once(data, 0))


def check_fits(data: object) -> object:
    """Return `data` if its JSON has at most 64 KiB. Raises `PydanticCustomError`."""
    text = to_json(data)  # nine times as fast as `dump_data`; its exponents are a byte shorter
    if (size := len(text)) > MAX_DATA_BYTES:
        raise PydanticCustomError(
            "too_large",
            "has {size} bytes of JSON; the limit is {most}",
            {"size": size, "most": MAX_DATA_BYTES},
        )
    if b"Infinity" in text:  # how `to_json` writes the number 1e999; or it is in a string
        try:
            dump_data(data)
        except ValueError as error:
            raise PydanticCustomError("data", "has a number that JSON cannot hold") from error
    return data
