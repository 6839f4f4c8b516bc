"""Whether the consumer delivers every command to the service. An operator can change the settings that ensure this."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from timer_service.adapters.nats.durable import DURABLE
from timer_service.adapters.nats.subjects import covers
from timer_service.core.ports.health import HEALTHY, Health

_Config = Mapping[str, Any]


def check_delivery(consumer: Mapping[str, Any], pattern: str) -> Health:
    """Return whether the server delivers all commands, according to the JetStream info of the consumer.

    `pattern`: the subjects of all commands. The reason of a health that is down includes the remedy.
    """
    name = f"consumer {DURABLE} of stream {consumer['stream_name']}"
    found = next(_problems(consumer, pattern), None)
    return HEALTHY if found is None else Health.down(f"{name} {found}")


def _problems(consumer: Mapping[str, Any], pattern: str) -> Iterator[str]:
    """Yield the problems that lose commands, and then the problems that only delay them."""
    config, stream = consumer["config"], consumer["stream_name"]
    edit = f"`nats consumer edit {stream} {DURABLE}"
    if (policy := config.get("ack_policy", "explicit")) != "explicit":
        yield (
            f"has ack_policy = {policy}: commands that are not handled yet count as handled. Delete the consumer with "
            f"`nats consumer rm {stream} {DURABLE}`; the service creates it again and handles every command that the "
            "stream still has"
        )
    if (most := config.get("max_deliver", -1)) > 0:
        yield (
            f"has max_deliver = {most}: a command that is delivered so often without success, for example in an "
            f"outage, is lost. Remove the limit with {edit} --max-deliver=-1`"
        )
    if config.get("headers_only"):
        yield f"has headers_only: every command arrives without its body. Change it with {edit} --no-headers-only`"
    filters = _filters(config)
    if filters and not any(covers(each, pattern) for each in filters):
        yield (
            f"delivers only {', '.join(filters)}: other commands never arrive. Change it with "
            f"{edit} --filter='{pattern}'`"
        )
    if consumer.get("paused"):
        yield f"is paused until {config.get('pause_until')}; resume it with `nats consumer resume {stream} {DURABLE}`"
    most, unsettled = config.get("max_ack_pending", 0), consumer["num_ack_pending"]
    if 0 < most <= unsettled:
        yield (
            f"delivers nothing: {unsettled} commands are delivered and not settled, and its max_ack_pending is {most}; "
            "they come again after its ack_wait or their delay"
        )


def _filters(config: _Config) -> Sequence[str]:
    """Return the subjects that the consumer delivers; none means all of the stream."""
    one = config.get("filter_subject")
    return [one] if one else config.get("filter_subjects") or []
