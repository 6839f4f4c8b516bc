"""The buffer of commands that have arrived: batches bounded in count and in bytes."""

from hypothesis import given
from hypothesis import strategies as st

from tests.harness.raw_nats import header_block
from timer_service.adapters.nats.buffer import Buffer
from timer_service.adapters.nats.intake_client import ReadMessage
from timer_service.adapters.nats.stored import StoredMessage
from timer_service.core.intake.epochs import StoredCommand

SUBJECT = "timer.cmd.v1.acme.schedule-timer"
BATCH_BYTES = 10_000


def message(size: int, *headers: bytes, sequence: int = 1, tenant: str = "acme") -> StoredMessage:
    """Return a command of `size` bytes, without its subject and headers."""
    reply = f"$JS.ACK.TIMER_CMD.timer-service.1.{sequence}.{sequence}.{1000 + sequence}.0"
    block = header_block(*headers) if headers else b""
    subject = SUBJECT.replace("acme", tenant)
    return StoredMessage.delivered(ReadMessage(subject.encode(), reply.encode(), block, b"x" * size))


def test_batches_are_bounded_by_count() -> None:
    """A batch has at most the limit, in order of arrival."""
    buffer = Buffer(BATCH_BYTES)
    for size in (1, 2, 3):
        buffer.append(message(size))
    assert [buffer.fills_batch(3), buffer.fills_batch(4)] == [True, False]
    assert [len(each.body) for each in buffer.take(2)] == [1, 2]
    assert [len(each.body) for each in buffer.take(2)] == [3]
    assert not buffer


def test_every_byte_counts() -> None:
    """A message counts with its subject, its body and its whole header block, as it is on the wire."""
    assert message(7).size == len(SUBJECT) + 7
    assert message(7, b"a:", b"b:").size == len(SUBJECT) + 7 + len(b"NATS/1.0\r\na:\r\nb:\r\n\r\n")


def test_headers_count_as_bytes() -> None:
    """A batch of messages with many tiny headers is as bounded as one with large bodies."""
    buffer = Buffer(BATCH_BYTES)
    for _ in range(3):
        buffer.append(message(0, *[b"a:"] * (BATCH_BYTES // 2 // len(b"a:\r\n"))))
    assert buffer.fills_batch(100)
    assert [len(buffer.take(100)) for _ in range(3)] == [1, 1, 1]


def test_a_command_larger_than_a_batch_is_alone() -> None:
    """A command that is larger than a batch is taken alone."""
    buffer = Buffer(BATCH_BYTES)
    for size in (BATCH_BYTES + 1, 1, 1):
        buffer.append(message(size))
    assert [len(buffer.take(10)) for _ in range(2)] == [1, 2]


def test_newest_command() -> None:
    """The buffer knows the newest command that was ever added, also after it was taken."""
    buffer = Buffer(BATCH_BYTES)
    for sequence in (7, 9, 8):
        buffer.append(message(1, sequence=sequence))
    buffer.take(10)
    assert (buffer.newest, buffer.last_delivery) == (StoredCommand(9, 1009), 8)


def test_a_batch_that_has_bytes_already() -> None:
    """The bytes that a batch has already leave less room for messages. Without room, it gets none."""
    buffer = Buffer(BATCH_BYTES)
    small = message(1).size
    for _ in range(4):
        buffer.append(message(1))
    assert buffer.take(10, used=BATCH_BYTES) == []
    assert buffer.take(10, used=BATCH_BYTES - small + 1) == []
    assert len(buffer.take(10, used=BATCH_BYTES - 2 * small)) == 2
    assert len(buffer.take(10)) == 2


def test_bytes_of_messages_that_were_taken() -> None:
    """The bytes of messages that were taken do not count any more. A buffer with the bytes of a batch fills one."""
    buffer = Buffer(BATCH_BYTES)
    buffer.append(message(BATCH_BYTES - message(0).size))
    full = buffer.fills_batch(10)
    buffer.take(10)
    buffer.append(message(1))
    assert [full, buffer.fills_batch(10)] == [True, False]


def tenant_of(stored: StoredMessage) -> str:
    return stored.subject.split(".")[3]


def nobody(_tenant: str) -> bool:
    return False


def test_small_messages_overtake_those_of_other_tenants() -> None:
    """Behind a message that does not fit, small ones of other tenants are taken, 64 KiB at most, and no large ones."""
    buffer = Buffer(BATCH_BYTES)
    for sequence, (tenant, size) in enumerate(
        [("acme", 9_000), ("globex", 10), ("acme", 10), ("initech", 70_000), ("initech", 10), ("globex", 40_000)], 1
    ):
        buffer.append(message(size, sequence=sequence, tenant=tenant))
    assert buffer.take(10, used=BATCH_BYTES) == []
    others = buffer.take_others(10, tenant_of, "hooli".__eq__)
    assert [each.receipt.sequence for each in others] == [1, 2, 3, 6]
    assert [each.receipt.sequence for each in buffer.take(10)] == [4]
    assert buffer.take_others(10, tenant_of, "initech".__eq__) == []
    assert buffer.take_others(0, tenant_of, nobody) == []
    assert buffer.take_others(10, tenant_of, nobody, first_waits=True) == []
    assert [each.receipt.sequence for each in buffer.take_others(10, tenant_of, nobody)] == [5]
    assert not buffer.fills_batch(1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([1, 3_000, 9_000, 70_000]), st.booleans())))
def test_no_message_overtakes_another_one_of_its_tenant(steps: list[tuple[str, int, bool]]) -> None:
    """Whatever fits and waits, the messages of each tenant keep their order, and none is lost."""
    buffer, taken, waiting = Buffer(BATCH_BYTES), list[StoredMessage](), set[str]()
    for sequence, (tenant, size, takes) in enumerate(steps, 1):
        buffer.append(message(size, sequence=sequence, tenant=tenant))
        if takes:
            waiting ^= {tenant}
            taken += [] if waiting else buffer.take(2)
            taken += buffer.take_others(2, tenant_of, waiting.__contains__)
    while buffer:
        taken += buffer.take(2)
        taken += buffer.take_others(1, tenant_of, nobody)
    assert sorted(each.receipt.sequence for each in taken) == list(range(1, len(steps) + 1))
    for tenant in "abc":
        own = [each.receipt.sequence for each in taken if tenant_of(each) == tenant]
        assert own == sorted(own)
    assert not buffer.fills_batch(1)
