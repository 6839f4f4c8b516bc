"""Claims workflows for polls, in one transaction, and makes their tasks.

Tenants take turns, and so do their lanes and the polls of a lane.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from timer_service.core.due.blame import Blame, blame
from timer_service.core.due.isolate import Failed, Retries, isolate
from timer_service.core.intake.route import Lane
from timer_service.core.ports.database import Row, Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.core.values.data import MAX_DATA_BYTES
from timer_service.core.values.stored_json import RawJson
from timer_service.workflows import store
from timer_service.workflows.protocol import REPLY_BYTES
from timer_service.workflows.tasks import lanes
from timer_service.workflows.tasks.build import read_tasks, task_bytes
from timer_service.workflows.tasks.lanes import LaneClaim
from timer_service.workflows.tasks.polls import Poll
from timer_service.workflows.tasks.task_store import loaded_bytes
from timer_service.workflows.workflow import Key


class Share(NamedTuple):
    """How many tasks of a lane a poll gets."""

    poll: Poll
    lane: Lane
    tasks: int


def share_tasks(
    available: Mapping[Lane, int],
    polls_of: Callable[[Lane], Collection[Poll]],
    fitting: Callable[[Lane], int],
    limit: int,
) -> list[Share]:
    """Share the tasks that are available among the polls of their lanes: at most `limit` in total.

    A poll gets at most as many tasks as its slots, and of a lane at most `fitting` (how many fit into a reply). Tenants
    take turns, and so do the lanes of a tenant and the polls of a lane. Each turn gives one task.
    """
    polls = {lane: deque(polls_of(lane)) for lane in available}
    free_slots = {poll: poll.wanted.slots for each in polls.values() for poll in each}
    left = dict(available)
    counts: Counter[tuple[Poll, Lane]] = Counter()
    turns: OrderedDict[str, deque[Lane]] = OrderedDict()
    for lane in available:
        turns.setdefault(lane[0], deque()).append(lane)
    while turns and limit > 0:
        tenant, lanes = turns.popitem(last=False)
        lane = lanes.popleft()
        waiting = polls[lane]
        while waiting and not (free_slots[waiting[0]] and counts[waiting[0], lane] < fitting(lane)):
            waiting.popleft()  # this poll gets no more tasks of the lane
        if waiting and left[lane]:
            poll = waiting[0]
            counts[poll, lane] += 1
            free_slots[poll] -= 1
            left[lane] -= 1
            limit -= 1
            waiting.rotate(-1)  # the other polls come before it in the next turn
            lanes.append(lane)
        if lanes:
            turns[tenant] = lanes
    return [Share(poll, lane, count) for (poll, lane), count in counts.items()]


class Claimed(NamedTuple):
    """What was claimed, and how much of it is to be sent."""

    tasks: Mapping[Poll, Sequence[RawJson]]
    """The tasks of each poll that has any."""
    found: Sequence[int]
    """For each share, how many workflows it claimed. The others were locked, or another instance claimed them."""
    kept: Sequence[int]
    """For each share, how many of them did fit into the reply. The others were released."""


NOTHING = Claimed({}, (), ())


class Claims:
    """Claims workflows. It holds no lock while tasks are sent."""

    def __init__(self, parts: Parts, *, claim_bytes: int) -> None:
        """`claim_bytes` limits one transaction: the bytes of its tasks, and of the effects and messages that it loads.

        A single task may have more.
        """
        self._parts = parts
        self._claim_bytes = claim_bytes
        self._retries = Retries[Key]("workflows")

    async def claim(self, shares: Sequence[Share], now: int, *, may_time_out: bool) -> Claimed:
        """Claim the workflows of shares. `may_time_out`: whether waits for messages may reach their timeouts.

        A workflow whose task cannot be made waits, and stops no other. Then polls may get fewer tasks.
        """
        tasks: dict[Poll, Sequence[RawJson]] = {}
        found, kept = [0] * len(shares), [0] * len(shares)

        async def attempt(share_numbers: Sequence[int]) -> None:
            """Claim one task for each occurrence of the number of a share, unless its poll has tasks already."""
            counts = Counter(number for number in share_numbers if shares[number].poll not in tasks)
            some = [shares[number]._replace(tasks=count) for number, count in counts.items()]
            claimed = await self._claim_together(some, now, may_time_out=may_time_out)
            tasks.update(claimed.tasks)
            for number, found_now, kept_now in zip(counts, claimed.found, claimed.kept, strict=True):
                found[number] += found_now
                kept[number] += kept_now

        # Each share occurs once per task, so that `isolate` can go down to a single task.
        await isolate([number for number, each in enumerate(shares) for _ in range(each.tasks)], attempt)
        return Claimed(tasks, found, kept)

    async def _claim_together(self, shares: Sequence[Share], now: int, *, may_time_out: bool) -> Claimed:
        """Claim workflows in one transaction. If it fails, and only one workflow can be at fault, this one waits."""
        if not shares:
            return NOTHING
        wanted = [
            LaneClaim(each.lane, each.tasks, each.poll.wanted.worker_id, each.poll.wanted.lease_ms) for each in shares
        ]
        rows: list[Row] = []  # those whose tasks are made; still known if that fails

        async def work(tx: Transaction) -> Claimed:
            rows.clear()
            claimed = await lanes.claim(tx, wanted, now)
            kept = self._count_fitting(shares, claimed)
            both = list(zip(claimed, kept, strict=True))
            await lanes.release(tx, [row for each, count in both for row in each[count:]])
            rows.extend(row for each, count in both for row in each[:count])
            made = await read_tasks(
                tx,
                rows,
                now,
                max_attempts=self._parts.max_attempts,
                may_time_out=may_time_out,
                wake=lambda loop: self._parts.wake(loop, now),
            )
            polls = [share.poll for share, count in zip(shares, kept, strict=True) for _ in range(count)]
            tasks: dict[Poll, list[RawJson]] = {}
            for poll, task in zip(polls, made, strict=True):
                if task is not None:
                    tasks.setdefault(poll, []).append(task)
            return Claimed(tasks, list(map(len, claimed)), kept)

        try:
            return await in_transaction(self._parts.database, work)
        except Exception as error:
            if len(rows) == 1 and blame(error) is Blame.COMMAND:
                await self._postpone(Key(rows[0]["tenant_id"], rows[0]["workflow_id"]), error, now)
            raise

    async def _postpone(self, key: Key, error: Exception, now: int) -> None:
        """Let a workflow wait whose task cannot be made."""
        retry = self._retries.of([Failed(key, error)], now)[key]
        await in_transaction(self._parts.database, lambda tx: store.postpone(tx, key, retry, now))

    def _count_fitting(self, shares: Sequence[Share], claimed: Sequence[Sequence[Row]]) -> list[int]:
        """Return how many rows of each share are kept: those that fit into the replies and into the bytes of a claim.

        The first row of a poll may be larger than its reply, and the first row of all may need more bytes. Tenants, and
        lanes of a tenant, come in a random order, so each of them has room in one of the next claims.
        """
        ranks: defaultdict[str | Lane, float] = defaultdict(self._parts.rng.random)
        tenants_and_lanes = [(share.lane[0], share.lane) for share in shares]
        order = sorted(range(len(shares)), key=lambda number: [ranks[each] for each in tenants_and_lanes[number]])
        used: Counter[Poll] = Counter()
        total = 0
        kept = [0] * len(shares)
        for number in order:
            poll = shares[number].poll
            for row in claimed[number]:
                size, needed = task_bytes(row), _needed_bytes(row)
                is_too_long = used[poll] and used[poll] + size > REPLY_BYTES
                if is_too_long or (total and total + size + needed > self._claim_bytes):
                    break
                used[poll] += size
                total += size + needed
                kept[number] += 1
        return kept


def _needed_bytes(row: Row) -> int:
    """Return what a claim needs for the effects of a row that its function has not got, with their messages."""
    unseen = row["effects"] - row["seen"]
    return int(loaded_bytes(unseen) + min(unseen * MAX_DATA_BYTES, row["message_bytes"]))
