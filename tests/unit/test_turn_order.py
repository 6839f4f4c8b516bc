"""Tenants take turns with the commands that were put back."""

from dataclasses import replace

from timer_service.core.intake.turn_order import divide_by_size, in_turns
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.message import Address, Kind, Position


def delivered(name: str) -> Delivery:
    """Return a delivery. The letter of its name is the tenant, the number is its sequence."""
    return Delivery(Address(Kind.COMMAND, name[0], "x"), "x", name, b"", {}, Position(1, int(name[1:])), 1, None, 0)


def ordered(names: str, served: str = "") -> str:
    return " ".join(
        each.message_id for each in in_turns([delivered(name) for name in names.split()], set(served).__contains__)
    )


def test_tenants_take_turns() -> None:
    """Each tenant has one command in each round, in its own order."""
    assert ordered("a1 a2 a3 b4 b5 c6") == "a1 b4 c6 a2 b5 a3"


def test_served_tenants_come_last() -> None:
    """A tenant with a command that was just handled comes last in each round."""
    assert ordered("a1 a2 b3 b4 c5", served="ab") == "c5 a1 b3 a2 b4"


def test_one_tenant() -> None:
    """The commands of a single tenant keep their order."""
    assert (ordered("a1 a2 a3", served="a"), ordered("")) == ("a1 a2 a3", "")


def test_tenants_with_a_large_command() -> None:
    """All commands of a tenant with a large one are apart, in their order: none overtakes another."""
    sizes = {"a1": 10, "b2": 10, "a3": 11, "b4": 10, "a5": 1}
    deliveries = [replace(delivered(name), size=size) for name, size in sizes.items()]
    light, heavy = divide_by_size(deliveries, 10)
    assert [[each.message_id for each in part] for part in (light, heavy)] == [["b2", "b4"], ["a1", "a3", "a5"]]
