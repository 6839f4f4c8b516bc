"""Makes pictures small."""

import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence

_HEAD = b"\x89PNG\r\n\x1a\n"
_CHANNELS = 3
_MOST_COLOURS = 256


def with_palette(png: bytes) -> bytes:
    """Return a PNG file with only its 256 most frequent colours, which is less than half as large.

    The file must have 8 bits for each of red, green and blue.
    """
    rows = list(_read_rows(png))
    counts = Counter(pixel for row in rows for pixel in row)
    palette = [colour for colour, _ in counts.most_common(_MOST_COLOURS)]
    index = {colour: _nearest(palette, colour) for colour in counts}
    pixels = b"".join(b"\0" + bytes(index[pixel] for pixel in row) for row in rows)
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3, 0, 0, 0)
    chunks = {b"IHDR": header, b"PLTE": b"".join(palette), b"IDAT": zlib.compress(pixels, 9), b"IEND": b""}
    return _HEAD + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    )


def _nearest(palette: Sequence[bytes], colour: bytes) -> int:
    """Return the index of the most similar colour."""
    return min(range(len(palette)), key=lambda n: sum((a - b) ** 2 for a, b in zip(palette[n], colour, strict=True)))


def _read_rows(png: bytes) -> Iterator[list[bytes]]:
    """Yield the pixels of each row."""
    width, _, bits, kind = struct.unpack(">IIBB", png[16:26])
    assert (bits, kind) == (8, 2), "it must have 8 bits for each of red, green and blue"
    data, place = b"", len(_HEAD)
    while place < len(png):
        size, name = struct.unpack(">I4s", png[place : place + 8])
        data += png[place + 8 : place + 8 + size] if name == b"IDAT" else b""
        place += size + 12
    data, size = zlib.decompress(data), width * _CHANNELS + 1
    above = bytes(size - 1)
    for start in range(0, len(data), size):
        above = _undo_filter(data[start], data[start + 1 : start + size], above)
        yield [above[n : n + _CHANNELS] for n in range(0, len(above), _CHANNELS)]


def _undo_filter(number: int, row: bytes, above: bytes) -> bytes:
    """Return the bytes of a row. A filter replaces each byte by its difference from a prediction."""
    done = bytearray(_CHANNELS) + row
    corners = bytes(_CHANNELS) + above
    for n, (up, corner) in enumerate(zip(above, corners, strict=False)):
        left = done[n]
        predictions = (0, left, up, (left + up) // 2, _paeth(left, up, corner))
        done[n + _CHANNELS] = (row[n] + predictions[number]) % 256
    return bytes(done[_CHANNELS:])


def _paeth(left: int, up: int, corner: int) -> int:
    """Return the neighbour that is nearest to left + up - corner."""
    return min((left, up, corner), key=lambda each: abs(left + up - corner - each))
