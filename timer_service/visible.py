"""Texts of users as somebody reads them: what cannot be seen is escaped."""

import re
from collections.abc import Collection

_FILLERS = (
    r"\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0"
    r"\U00016fe4\U0001d159\U000e0100-\U000e01ef"
)
"""Characters that cannot be seen, although they count as printable: fillers, blanks and variants of others."""
_EMOJI = (
    r"\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u23cf-\u23ff\u24c2\u25aa\u25ab"
    r"\u25b6\u25c0\u25fb-\u25fe\u2600-\u27bf\u2934\u2935\u2b05-\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
"""Characters that U+FE0F shows in colour. It also stands between a digit and its keycap, U+20E3."""
_HIDDEN = re.compile(f"[{_FILLERS}]|(?<![{_EMOJI}])\ufe0f(?!\u20e3)")


def escape_hidden(text: str, shown: Collection[int] = ()) -> str:
    """Return text with each character escaped that is invisible or acts on others, such as a change of direction.

    Such characters could make one id look like another. Those at the places `shown` stay.
    """
    if text.isprintable() and (text.isascii() or _HIDDEN.search(text) is None):
        return text
    hidden = {found.start() for found in _HIDDEN.finditer(text)}
    hidden.update(number for number, each in enumerate(text) if not each.isprintable() and number not in shown)
    return "".join(escape_character(each) if number in hidden else each for number, each in enumerate(text))


def escape_character(each: str) -> str:
    r"""Return the escape of a character, such as `\u202e`."""
    return each.encode("unicode_escape").decode()
