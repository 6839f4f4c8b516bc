"""The replies to commands: their bodies, and the rule for their subjects.

A client chooses the subject, so it could make the service publish anywhere.
"""

import asyncio
import logging
import re
from collections.abc import Sequence

from timer_service.core.intake.route import CommandResult
from timer_service.core.ports.broker import Broker, Reply
from timer_service.core.values.codec import REPLY_TO
from timer_service.core.values.error_text import error_text
from timer_service.core.values.raw_command import RawCommand
from timer_service.core.values.stored_json import RawJson, write_object

log = logging.getLogger(__name__)

_MOST_BYTES = 1024 * 1024
"""The bytes of the replies that are sent together."""
_MAX_BYTES = 512
_SUBJECT = re.compile(r"[!-)+-\-/-=?-~]+(\.[!-)+-\-/-=?-~]+)*")
"""Tokens of printable ASCII without wildcards. A broker denies or misroutes any other subject."""


def may_reply_to(subject: str | None, prefixes: tuple[str, ...]) -> bool:
    """Return whether the service may send a reply to a subject: it has one of the prefixes, and a broker accepts it.

    A broker denies a subject with empty tokens, white space or wildcards. A very long subject ends the connection.
    """
    if subject is None or len(subject) > _MAX_BYTES or not subject.startswith(prefixes):
        return False
    return _SUBJECT.fullmatch(subject) is not None


def inbox_of(raw: RawCommand, prefixes: tuple[str, ...]) -> str | None:
    """Return the inbox that the command names, or None if it names none that the service may publish to."""
    to = raw.headers.get(REPLY_TO)
    return to if may_reply_to(to, prefixes) else None


def reply_body(command_id: str, result: CommandResult) -> bytes:
    """Return the reply to a command: its id, its outcome, and the fields of the view. Stored JSON is copied."""
    fields = result.view() if result.view else {}
    stored = {name: value for name, value in fields.items() if isinstance(value, RawJson)}
    plain = {name: value for name, value in fields.items() if name not in stored}
    return write_object({"commandId": command_id, "outcome": result.name, **plain}, stored).encode()


async def send_replies(broker: Broker, wanted: Sequence[tuple[str, str, CommandResult]]) -> None:
    """Send replies, each given by its inbox, the id of its command, and the result.

    Bodies of 1 MiB exist at a time. If the view of a result raises, its reply has only the outcome.
    """
    replies: list[Reply] = []
    size = 0
    for to, command_id, result in wanted:
        try:
            body = reply_body(command_id, result)
        except Exception as error:  # noqa: BLE001 - the command is applied, and other replies wait
            about = {"command_id": command_id, "reason": error_text(error)}
            log.warning("the reply has only the outcome: the rest cannot be read", extra=about)
            body = reply_body(command_id, result._replace(view=None))
        replies.append(Reply(to, body))
        size += len(body)
        if size >= _MOST_BYTES:
            await broker.reply(replies)
            await asyncio.sleep(0)
            replies, size = [], 0
    if replies:
        await broker.reply(replies)
