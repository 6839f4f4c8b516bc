"""Texts of users as somebody reads them: what cannot be seen is escaped."""

import re

_HIDDEN = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    r"\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)
"""Characters that cannot be seen, although they count as printable: fillers, blanks and variants of others."""


def escape_hidden(text: str) -> str:
    r"""Return text with an escape such as `\u202e` for each character that is invisible or acts on others.

    Such characters could make one id look like another.
    """
    if text.isprintable() and (text.isascii() or _HIDDEN.search(text) is None):  # nearly every text
        return text
    return "".join(
        each if each.isprintable() and not _HIDDEN.match(each) else each.encode("unicode_escape").decode()
        for each in text
    )
