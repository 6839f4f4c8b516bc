"""What a stay knows about the commands that have arrived in it."""

import asyncio
from typing import cast

from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.adapters.nats.stay import Stay
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.budget import DEFAULT_BUDGET
from timer_service.core.epochs import Epochs, Part, Received, StoredCommand

EPOCHS = Epochs((Part(7, "created", 1, 0, 0),))


def test_newest_command() -> None:
    """The newest command is the newest in the buffer or read ahead. If the stream loses it, a new stay must begin."""
    stay = Stay(
        1,
        EPOCHS,
        cast("DurableConsumer", None),
        Subjects("timer"),
        messages=["schedule-timer"],
        batch_bytes=DEFAULT_BUDGET.batch,
        ready=asyncio.Event(),
    )
    found = [stay.newest]
    stay.buffer.newest = StoredCommand(80, 1080)
    found.append(stay.newest)
    stay.lane.newest = StoredCommand(3001, 4001)
    found.append(stay.newest)
    assert found == [None, Received(7, StoredCommand(80, 1080)), Received(7, StoredCommand(3001, 4001))]
