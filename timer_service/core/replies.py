"""The inboxes that replies may go to."""

import re

from timer_service.core.broker import Delivery
from timer_service.core.codec import REPLY_TO

_LONGEST = 256
_SUBJECT = re.compile(r"[!-)+-\-/-=?-~]+(\.[!-)+-\-/-=?-~]+)*")
"""Tokens of printable ASCII without wildcards. A broker denies or misroutes any other subject."""


def inbox_of(delivery: Delivery, prefix: str) -> str | None:
    """Return the inbox that the command names, or None if it names none that the service may publish to.

    A client must not be able to make the service publish elsewhere.
    """
    to = delivery.headers.get(REPLY_TO, "")
    return to if to.startswith(prefix) and len(to) <= _LONGEST and _SUBJECT.fullmatch(to) else None
