"""Secrets that are read again at each connect, such as a password in a file that is replaced while programs run."""

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

_T = TypeVar("_T")

READ_SECONDS = 5.0
"""How long a connect waits for the secrets."""


class SecretSource(Generic[_T]):
    """Reads the secrets of a login for each connect, and logs why they cannot be read or are refused.

    While they cannot be read, for example because one of two files was not replaced yet, the last ones are used.
    """

    def __init__(self, read: Callable[[], _T], login: str) -> None:
        """Read for the first time. Raises the error of `read`. `login`: for messages, such as `the login at x`."""
        self._read = read
        self._login = login
        self._last = read()
        self._reading: asyncio.Task[_T] | None = None
        self._unreadable = ""
        self.refusal = ""
        """Why the server has refused the last secrets; empty if it has accepted them."""
        self._was_accepted = False

    async def read(self) -> _T:
        """Read the secrets, in a thread. If that fails or takes long, log the reason and return the last ones."""
        if self._reading is None or self._reading.done():  # a thread that hangs cannot be ended, so there is only one
            self._reading = asyncio.create_task(asyncio.to_thread(self._read))
        try:
            self._last = await asyncio.wait_for(asyncio.shield(self._reading), READ_SECONDS)
        except Exception as error:  # noqa: BLE001 - the function can be one of users
            reason = f"{self._login} cannot be read: {str(error) or type(error).__name__}"
            if reason != self._unreadable:
                log.warning("%s; the last one is used", reason)
            self._unreadable = reason
        else:
            self._unreadable = ""
        return self._last

    def accepted(self) -> None:
        """Record that the server has accepted the secrets."""
        self._was_accepted = True
        self.refusal = ""

    def refused(self, reason: str) -> str:
        """Return why the secrets were refused, and why they are not the newest ones. Log it, each reason once.

        Before the server has accepted any, only the caller reports it.
        """
        if self._was_accepted and reason != self.refusal:
            log.warning("%s", reason)
        self.refusal = reason
        return "; ".join(filter(None, [reason, self._unreadable]))
