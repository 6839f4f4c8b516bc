"""The calls in progress on the connection of a client."""

import asyncio

from timer_service.client.calls import Calls


async def test_cancellation_at_the_moment_of_the_answer() -> None:
    """A caller that is cancelled in the moment in which the answer comes is cancelled, and does not go on."""
    answer = asyncio.get_running_loop().create_future()
    calls, went_on = Calls(), []

    async def call() -> None:
        await calls.run(asyncio.wait_for(answer, 10))
        went_on.append(True)

    caller = asyncio.ensure_future(call())
    for _ in range(3):
        await asyncio.sleep(0)
    answer.set_result(None)
    caller.cancel()
    await asyncio.wait([caller])
    assert (caller.cancelled(), went_on) == (True, [])
