"""The order in which the commands of a batch are handled."""

from collections import deque
from collections.abc import Callable, Sequence

from timer_service.core.values.delivery import Delivery


def in_turns(deliveries: Sequence[Delivery], served: Callable[[str], int]) -> list[Delivery]:
    """Return deliveries in an order in which tenants take turns. Each tenant's deliveries keep their order.

    In each round, tenants for which `served` is larger come later: some of their commands were handled lately.
    """
    waiting: dict[str, deque[Delivery]] = {}
    for delivery in deliveries:
        waiting.setdefault(delivery.address.tenant, deque()).append(delivery)
    queues = deque(sorted(waiting.items(), key=lambda item: served(item[0])))
    ordered: list[Delivery] = []
    while queues:
        tenant, queue = queues.popleft()
        ordered.append(queue.popleft())
        if queue:
            queues.append((tenant, queue))
    return ordered


def divide_by_size(deliveries: Sequence[Delivery], large: int) -> tuple[list[Delivery], list[Delivery]]:
    """Return the deliveries of tenants without, and of tenants with a delivery of more than `large` bytes."""
    tenants = {each.address.tenant for each in deliveries if each.size > large}
    light = [each for each in deliveries if each.address.tenant not in tenants]
    heavy = [each for each in deliveries if each.address.tenant in tenants]
    return light, heavy
