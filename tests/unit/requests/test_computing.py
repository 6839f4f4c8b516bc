"""The computing of queries leaves a part of the event loop to other tasks."""

import asyncio

from timer_service.core.requests.computing import Computing, Steps


class Time:
    """A monotonic clock that only work and rests advance."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rests: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.rests.append(round(seconds, 4))
        self.now += seconds
        await asyncio.sleep(0)

    def computing(self) -> Computing:
        return Computing(monotonic=self.monotonic, sleep=self.sleep)

    def work(self, name: str, seconds: float, count: int, log: list[str]) -> Steps[str]:
        """Return work of `count` steps that take some time each."""
        for _ in range(count):
            self.now += seconds
            log.append(name)
            yield
        return name


async def test_rests_after_each_slice() -> None:
    """After 5 ms of computing, other tasks have the event loop for as long as the computing took."""
    time, log = Time(), list[str]()
    assert await time.computing().run(time.work("a", 0.002, 7, log)) == "a"
    assert time.rests == [0.006, 0.006]


async def test_many_share_one_part_of_the_loop() -> None:
    """However many queries compute, they take turns, and together they rest as long as they compute."""
    time, log = Time(), list[str]()
    computing = time.computing()
    await asyncio.gather(*(computing.run(time.work(name, 0.005, 3, log)) for name in "abc"))
    assert sorted(log[1:4]) == ["a", "b", "c"]
    assert time.rests == [0.005] * 9


async def test_short_work_counts_too() -> None:
    """Work that is too short for a rest of its own adds up, unless the loop was free meanwhile."""
    time = Time()
    computing = time.computing()
    for _ in range(6):
        async with computing.slice():
            time.now += 0.001
    assert time.rests == [0.002, 0.002]
    for _ in range(6):
        time.now += 0.001
        async with computing.slice():
            time.now += 0.001
    assert time.rests == [0.002, 0.002]
