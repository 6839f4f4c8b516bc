"""The rule for the subjects of replies. A client chooses the subject, so it could make the service publish anywhere."""

import re

from timer_service.core.broker import Delivery
from timer_service.core.codec import REPLY_TO

_MAX_BYTES = 512
_SUBJECT = re.compile(r"[!-)+-\-/-=?-~]+(\.[!-)+-\-/-=?-~]+)*")
"""Tokens of printable ASCII without wildcards. A broker denies or misroutes any other subject."""


def may_reply_to(subject: str | None, *prefixes: str) -> bool:
    """Return whether the service may send a reply to a subject: it has one of the prefixes, and a broker accepts it.

    A broker denies a subject with empty tokens, white space or wildcards. A very long subject ends the connection.
    """
    if subject is None or len(subject) > _MAX_BYTES or not subject.startswith(prefixes):
        return False
    return _SUBJECT.fullmatch(subject) is not None


def inbox_of(delivery: Delivery, prefix: str) -> str | None:
    """Return the inbox that the command names, or None if it names none that the service may publish to."""
    to = delivery.headers.get(REPLY_TO)
    return to if may_reply_to(to, prefix) else None
