"""The watches of a subject share one subscription: a server may allow few of them per connection."""

import asyncio
from collections.abc import Sequence
from functools import partial

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from timer_service.cancellation import keep_cancellation
from timer_service.client.events import WITH_TOPIC, message_of
from timer_service.client.nats.commands import Subject
from timer_service.client.watches import Watch
from timer_service.core.ports.completion import run_to_completion
from timer_service.core.values.address import Kind

_HAVE_TOPIC = {message_of(each) for each in WITH_TOPIC}


class Watches:
    """The watches of a connection. There is a subscription to each subject that has watches."""

    def __init__(self, client: Client, subject: Subject) -> None:
        self._client = client
        self._subject = subject
        self._watches: dict[Watch, Sequence[str]] = {}
        """The subjects of each watch."""
        self._subscriptions: dict[str, Subscription] = {}
        self._updating = asyncio.Lock()

    def end(self) -> None:
        """End every watch, because the connection is lost."""
        for watch in self._watches:
            watch.end_lost()

    async def join(self, watch: Watch) -> None:
        """See `Link.join`."""
        self._watches[watch] = self._subjects_of(watch)
        with keep_cancellation():
            await self._update()
        # The driver sends a flush before data that it holds back: only the second one follows the subscriptions.
        await self._client.flush()
        await self._client.flush()

    async def leave(self, watch: Watch) -> None:
        """See `Link.leave`."""
        self._watches.pop(watch, None)
        await run_to_completion(self._update())

    async def _update(self) -> None:
        """Subscribe to the subjects that have watches, and unsubscribe from the others.

        One update follows the other: watches join and leave while the driver waits.
        """
        async with self._updating:
            watched = {subject for subjects in self._watches.values() for subject in subjects}
            for subject in self._subscriptions.keys() - watched:
                subscription = self._subscriptions.pop(subject)
                if not self._client.is_closed:  # closing ended all subscriptions
                    await subscription.unsubscribe()
            for subject in sorted(watched - self._subscriptions.keys()):
                # The driver swallows a cancellation here, so no subscription is lost. The limits of 0 are none: the
                # driver would drop messages above limits, and few are pending, because `_receive` never waits.
                self._subscriptions[subject] = await self._client.subscribe(
                    subject, cb=partial(self._receive, subject), pending_msgs_limit=0, pending_bytes_limit=0
                )

    async def _receive(self, subject: str, message: Msg) -> None:
        """Give an event to the watches of the subject of its subscription."""
        for watch, subjects in self._watches.items():
            if subject in subjects:
                watch.add(message.data)

    def _subjects_of(self, watch: Watch) -> Sequence[str]:
        """Return the subjects of a watch. No wildcard matches events without a topic and with one."""
        forms = [form for each in watch.messages for form in ([each, f"{each}.*"] if each in _HAVE_TOPIC else [each])]
        return [self._subject(Kind.EVENT, watch.tenant, form) for form in forms]
