"""The rule for the subjects of replies. A client chooses the subject, so it could make the service publish anywhere."""

import re

_PART = r"[^\s*>.\x00-\x1f\x7f\ud800-\udfff]+"
_SUBJECT = re.compile(rf"{_PART}(\.{_PART})*")
_MAX_BYTES = 512


def may_reply_to(subject: str | None, *prefixes: str) -> bool:
    """Return whether the service may send a reply to a subject: it has one of the prefixes, and a broker accepts it.

    A broker denies a subject with empty tokens, white space or wildcards. A very long subject ends the connection.
    """
    if subject is None or len(subject) > _MAX_BYTES or not subject.startswith(prefixes):
        return False
    return _SUBJECT.fullmatch(subject) is not None and len(subject.encode()) <= _MAX_BYTES
