"""Listings of the subjects of a stream, as JetStream writes them."""

import json
from collections.abc import Mapping

import pytest

from timer_service.adapters.nats import listing as module
from timer_service.adapters.nats.listing import Listing, read_entry, with_number


def answer(subjects: Mapping[str, int]) -> bytes:
    """Return the info of a stream. Names like those of a listing also occur elsewhere in it."""
    state = {"messages": 9, "first_seq": 1, "last_seq": 42, "subjects": subjects, "consumer_count": 1}
    description = '"state":{"last_seq":7,"subjects":{"x":1}'
    config = {"description": description, "subjects": ["timer.cmd.v1.*.*"], "metadata": {"a": "1"}}
    info = {"total": 3, "config": config, "state": state, "cluster": {"name": "a", "peers": [{"lag": 1}]}}
    return json.dumps(info, separators=(",", ":")).encode()


def read_all(listing: Listing) -> dict[str, int]:
    entries = [raw for part in listing.parts() for raw in part]
    return dict(map(read_entry, entries))


TENANTS = ["a", "a,b", 'a,"b', 'a":5}b', '":5},"', "}", "\\", '\\"', "ü{", "5}", "last_seq", "x" * 200]


def test_any_tenant() -> None:
    """Every name of a tenant is read, also with the characters that separate values in JSON."""
    subjects = {f"timer.cmd.v1.{tenant}.schedule-timer": number for number, tenant in enumerate(TENANTS, 9)}
    listing = Listing(answer(subjects))
    assert (read_all(listing), listing.last_sequence) == (subjects, 42)


def test_many_subjects_come_in_parts() -> None:
    """A long listing is read in parts, and no subject is lost between them."""
    subjects = {f"timer.cmd.v1.tenant-{number}.schedule-timer": number for number in range(20_000)}
    listing = Listing(answer(subjects))
    assert read_all(listing) == subjects
    assert max(len(part) for part in listing.parts()) < len(subjects) / 3


@pytest.mark.parametrize("subjects", [{}, {"timer.cmd.v1.a.schedule-timer": 1}])
def test_few_subjects(subjects: Mapping[str, int]) -> None:
    """A listing may have no subject, or one."""
    assert read_all(Listing(answer(subjects))) == subjects


def test_without_subjects() -> None:
    """JetStream leaves the subjects out if none matches."""
    assert read_all(Listing(b'{"config":{},"state":{"messages":0,"last_seq":0,"consumer_count":1},"ts":"a"}')) == {}


@pytest.mark.parametrize("wrong", [b"", b'{"error":{"code":503,"description":"a"}}', b'{"state":{}}'])
def test_other_answers(wrong: bytes) -> None:
    """An error of the broker is not taken for an empty listing."""
    with pytest.raises(ValueError, match="not the info of a stream"):
        Listing(wrong)


def test_with_number() -> None:
    """An entry with another number is equal to the entry in a listing with this number."""
    (before,) = next(Listing(answer({'timer.cmd.v1.a"b.x': 5})).parts())
    (after,) = next(Listing(answer({'timer.cmd.v1.a"b.x': 12})).parts())
    assert with_number(before, 12) == after


def test_an_answer_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer with more bytes than the subjects of valid commands can have is not read."""
    largest = answer({"timer.cmd.v1.a.schedule-timer": 1})
    monkeypatch.setattr(module, "_MOST_BYTES", len(largest))
    assert len(read_all(Listing(largest))) == 1
    with pytest.raises(ValueError, match="the subjects of the stream have"):
        Listing(largest + b" ")
